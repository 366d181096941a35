#include "client/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtier::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Arguments Parse(const std::vector<std::string>& words, const std::string& socket = "") {
  const auto arguments = ParseArguments(words, socket);
  EXPECT_TRUE(arguments.ok()) << arguments.status();
  return arguments.value_or(Arguments());
}

std::string ErrorOf(const std::vector<std::string>& words) {
  return std::string(ParseArguments(words, "").status().message());
}

TEST(Arguments, WhereTheDaemonIs) {
  EXPECT_EQ(Parse({"stats"}).target, "unix:/run/kvtierd/kvtierd.sock");
  EXPECT_EQ(Parse({"stats"}, "/a").target, "unix:/a");
  EXPECT_EQ(Parse({"stats", "--socket=/b"}, "/a").target, "unix:/b");
  EXPECT_EQ(Parse({"--socket", "unix:/b", "stats"}).target, "unix:/b");
  EXPECT_EQ(Parse({"stats", "--socket=/b"}).socket_path(), "/b");
  EXPECT_EQ(Parse({"stats", "--address=localhost:7400"}).target, "localhost:7400");
  EXPECT_EQ(Parse({"stats", "--address=localhost:7400"}).socket_path(), "");
}

TEST(Arguments, FlagsStandAnywhere) {
  const Arguments arguments =
      Parse({"--output=json", "evict", "--timeout", "250ms", "b.s", "--message=two words"});
  EXPECT_EQ(arguments.command, "evict");
  EXPECT_THAT(arguments.operands, ElementsAre("b.s"));
  EXPECT_EQ(arguments.output, Output::kJson);
  EXPECT_EQ(arguments.timeout, absl::Milliseconds(250));
  EXPECT_EQ(arguments.message, "two words");
  EXPECT_EQ(Parse({"top", "--iterations=3"}).iterations, 3);
}

TEST(Arguments, Mistakes) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("a command is missing"));
  EXPECT_THAT(ErrorOf({"stat"}), HasSubstr("no command 'stat'; did you mean stats?"));
  EXPECT_THAT(ErrorOf({"xyz"}), HasSubstr("no command 'xyz' ("));
  EXPECT_THAT(ErrorOf({"requests"}), HasSubstr("usage: kvtierctl requests CACHE"));
  EXPECT_THAT(ErrorOf({"caches", "c"}), HasSubstr("usage: kvtierctl caches"));
  EXPECT_THAT(ErrorOf({"stats", "--outptu=json"}), HasSubstr("did you mean --output?"));
  EXPECT_THAT(ErrorOf({"stats", "--qqq"}), HasSubstr("there is no flag --qqq ("));
  EXPECT_THAT(ErrorOf({"stats", "--output=yaml"}), HasSubstr("neither table nor json"));
  EXPECT_THAT(ErrorOf({"stats", "--timeout=5"}), HasSubstr("no duration like 5s"));
  EXPECT_THAT(ErrorOf({"top", "--interval=1ms"}), HasSubstr("100ms..1h"));
  EXPECT_THAT(ErrorOf({"top", "--iterations=0"}), HasSubstr("no number from 1 on"));
  EXPECT_THAT(ErrorOf({"stats", "--socket"}), HasSubstr("--socket needs a value"));
}

TEST(Arguments, HelpIsThereForWhoeverCannotTypeTheRest) {
  EXPECT_EQ(Parse({"--help"}).command, "help");
  EXPECT_EQ(Parse({"evict", "--help"}).command, "help");
  EXPECT_THAT(Usage(), HasSubstr("\n  evict SESSION "));
  EXPECT_THAT(Usage(), HasSubstr("  3  the daemon cannot be reached"));
  EXPECT_THAT(Usage(), Not(HasSubstr("complete caches")));
}

}  // namespace
}  // namespace kvtier::cli
