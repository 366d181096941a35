#include "tests/benchmark/report.h"

#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

BenchmarkFlags Flags(std::vector<std::string> words) {
  words.insert(words.begin(), "benchmark");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return BenchmarkFlags(static_cast<int>(argv.size()), argv.data());
}

TEST(BenchmarkFlags, GiveWhatIsGivenAndElseTheDefault) {
  BenchmarkFlags flags = Flags({"--miss=0,10", "--ours-only", "--json=a=b.json"});
  EXPECT_THAT(flags.Numbers("miss", {5}), ElementsAre(0, 10));
  EXPECT_THAT(flags.Numbers("batch", {5}), ElementsAre(5));
  EXPECT_TRUE(flags.Has("ours-only"));
  EXPECT_FALSE(flags.Has("quick"));
  EXPECT_EQ(flags.Text("json", ""), "a=b.json");
  EXPECT_EQ(flags.Number("repeats", 7), 7);
  flags.RequireNoOthers();
}

TEST(BenchmarkFlagsDeathTest, RefuseWhatNobodyKnows) {
  EXPECT_EXIT(Flags({"miss=1"}), ExitedWithCode(2), "not an option: miss=1");
  EXPECT_EXIT(Flags({"--mis=1"}).RequireNoOthers(), ExitedWithCode(2), "no such option: --mis");
  EXPECT_EXIT(Flags({"--miss=1,x"}).Numbers("miss", {}), ExitedWithCode(2), "not a number: x");
  EXPECT_EXIT(Flags({"--miss="}).Numbers("miss", {}), ExitedWithCode(2), "needs a number");
}

TEST(JsonObject, KeepsOrderAndEscapes) {
  JsonObject object;
  object.Add("a", 1.5).Add("b", 2).Add("c", std::string("x\"\\y\n")).AddJson("d", "[]");
  EXPECT_EQ(object.ToString(), R"({"a": 1.5, "b": 2, "c": "x\"\\y", "d": []})");
  EXPECT_EQ(JsonObject().Add("a", 1.0 / 0.0).ToString(), R"({"a": null})");
}

TEST(JsonList, IsALinePerElement) {
  EXPECT_EQ(JsonList({}), "[\n]");
  EXPECT_EQ(JsonList({"1", "2"}), "[\n  1,\n  2\n]");
}

TEST(Report, WritesTheMachineBesideTheNumbers) {
  EXPECT_EQ(MachinePath("out/a.json"), "out/a_machine.json");
  EXPECT_EQ(MachinePath(""), "");
  const std::string path = ::testing::TempDir() + "/a.json";
  WriteText(path, "{}");
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "{}\n");
  EXPECT_THAT(DescribeMachine().ToString(), HasSubstr("\"cpu_threads\": "));
}

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(Percentile(values, 0), 1);
  EXPECT_EQ(Percentile(values, 0.5), 3);
  EXPECT_EQ(Percentile(values, 0.8), 4);
  EXPECT_EQ(Percentile(values, 0.81), 5);
  EXPECT_EQ(Percentile(values, 1), 5);
}

}  // namespace
}  // namespace kvtier::testing
