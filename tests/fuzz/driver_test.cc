#include "tests/fuzz/driver.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace kvtier::fuzz {
namespace {

// Fails on any input with an x and, somewhere after it, a y.
absl::Status Play(absl::string_view input, Played* played) {
  ++played->operations;
  const size_t x = input.find('x');
  if (x == absl::string_view::npos || !absl::StrContains(input.substr(x), 'y')) {
    return absl::OkStatus();
  }
  return absl::InternalError("x before y");
}
constexpr Target kTarget = {.play = Play};

TEST(DriverTest, FindsAFailureAndTheSeedFindsItAgain) {
  const auto find = [](uint64_t seed) {
    Played played;
    Failure failure;
    EXPECT_FALSE(Drive(kTarget, {"abcx", "dyef"}, {1'000'000, seed}, &played, &failure));
    EXPECT_EQ(failure.status.message(), "x before y");
    return failure.input;
  };
  EXPECT_EQ(find(1), find(1));
  EXPECT_NE(find(1), find(2));
}

TEST(DriverTest, AFailureIsReducedToWhatItTakes) {
  EXPECT_EQ(Shrink(kTarget, "abxcdxefyghyi"), "xy");
}

TEST(DriverTest, TheCorpusComesFirstAndTheBudgetEndsIt) {
  Played played;
  Failure failure;
  EXPECT_TRUE(Drive(kTarget, {"a", "b"}, {2, 1}, &played, &failure));
  EXPECT_EQ(played.operations, 2);
  EXPECT_FALSE(Drive(kTarget, {"a", "xy"}, {0, 1}, &played, &failure));
  EXPECT_EQ(failure.input, "xy");
}

TEST(DriverTest, AfterItsTimeTheCorpusAloneIsPlayed) {
  Played played;
  Failure failure;
  const Budget budget = {.operations = 1'000'000, .until = absl::InfinitePast()};
  EXPECT_TRUE(Drive(kTarget, {"a", "b"}, budget, &played, &failure));
  EXPECT_EQ(played.operations, 2);
}

}  // namespace
}  // namespace kvtier::fuzz
