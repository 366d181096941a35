#include "server/session/progress.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "server/core/error.h"

namespace kvtier {
namespace {

std::shared_ptr<Progress> Make() { return *Progress::Create(nullptr); }

TEST(ProgressTest, NothingIsExpectedAtFirst) {
  const auto progress = Make();
  EXPECT_FALSE(progress->expects());
  EXPECT_FALSE(progress->behind());
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 0);
}

TEST(ProgressTest, ReleasesTheFurthestNumberNotTheLast) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(6).ok());
  ASSERT_TRUE(progress->Expect(5).ok());
  *progress->worker_word() = 4;
  EXPECT_TRUE(progress->behind());
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 6);
  EXPECT_FALSE(progress->behind());
}

TEST(ProgressTest, NeverGoesBack) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(6).ok());
  *progress->worker_word() = 9;
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 9);
  // A worker that writes an earlier number is released again.
  *progress->worker_word() = 3;
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 6);
}

TEST(ProgressTest, NumbersAreCyclic) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(INT32_MAX).ok());
  ASSERT_TRUE(progress->Expect(INT32_MIN + 3).ok());
  *progress->worker_word() = INT32_MAX - 1;
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), INT32_MIN + 3);
}

TEST(ProgressTest, NumbersThatNoOrderHasAreRefused) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(0).ok());
  const absl::Status status = progress->Expect(0x60000000);
  EXPECT_EQ(ErrorReasonOf(status), "FIELD_INVALID") << status;
  EXPECT_EQ(ErrorMetadataOf(status)["field"], "after_worker");
  *progress->worker_word() = -1;
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 0) << "what was refused is not expected";
}

// Each is near the one before it, and the last one is behind the first.
TEST(ProgressTest, NumbersDoNotGoRoundInSteps) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(1).ok());
  ASSERT_TRUE(progress->Expect(1 + (1 << 30)).ok());
  EXPECT_EQ(ErrorReasonOf(progress->Expect(-INT32_MAX)), "FIELD_INVALID");
  EXPECT_TRUE(progress->behind()) << "1 is not there yet";
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 1 + (1 << 30));
  EXPECT_FALSE(progress->behind());
  // Once the first one is passed the worker's numbers may go on, also past INT32_MAX.
  progress->Passed(1);
  EXPECT_TRUE(progress->Expect(-INT32_MAX).ok());
  EXPECT_EQ(progress->expected_count(), 3);
}

TEST(ProgressTest, EachNumberIsReleasedWhateverTheWorkerWrites) {
  const auto progress = Make();
  for (const int32_t number : {5, 3, 6}) ASSERT_TRUE(progress->Expect(number).ok());
  for (const int64_t word : {int64_t{5} + INT32_MAX, int64_t{6} + INT32_MAX, int64_t{INT32_MIN},
                             int64_t{INT32_MAX}, int64_t{0}, int64_t{4}}) {
    *progress->worker_word() = static_cast<int32_t>(static_cast<uint32_t>(word));
    progress->Release();
    const auto now = static_cast<uint32_t>(*progress->worker_word());
    for (const uint32_t number : {5U, 3U, 6U}) {
      EXPECT_GE(static_cast<int32_t>(now - number), 0) << word << " holds up " << number;
    }
    EXPECT_FALSE(progress->behind()) << word;
  }
}

TEST(ProgressTest, WhatIsPassedHoldsUpNothing) {
  const auto progress = Make();
  ASSERT_TRUE(progress->Expect(5).ok());
  ASSERT_TRUE(progress->Expect(7).ok());
  progress->Passed(1);
  progress->Passed(1);  // the same ones again
  EXPECT_TRUE(progress->behind());
  progress->Passed(2);
  EXPECT_FALSE(progress->behind());
  progress->Release();
  EXPECT_EQ(*progress->worker_word(), 0);
  EXPECT_TRUE(progress->Expect(INT32_MIN).ok())
      << "nothing is waited for that it could be far from";
  EXPECT_TRUE(progress->behind());
  EXPECT_TRUE(progress->expects());
}

}  // namespace
}  // namespace kvtier
