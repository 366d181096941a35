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

}  // namespace
}  // namespace kvtier
