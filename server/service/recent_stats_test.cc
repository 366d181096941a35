#include "server/service/recent_stats.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace kvtier {
namespace {

class RecentStatsTest : public ::testing::Test {
 protected:
  // Which look it was that the viewer got; -1: an error.
  int Get(const std::string& cache = "") {
    const absl::StatusOr<RecentStats::Stats> stats =
        recent_.Get(cache, now_, [&]() -> absl::StatusOr<v1::GetStatsResponse> {
          if (!status_.ok()) return status_;
          v1::GetStatsResponse response;
          response.set_sessions(++looks_);
          return response;
        });
    return stats.ok() ? (*stats)->sessions() : -1;
  }

  RecentStats recent_{absl::Milliseconds(50)};
  absl::Time now_ = absl::UnixEpoch();
  absl::Status status_;
  int looks_ = 0;
};

TEST_F(RecentStatsTest, WhoLooksSoonAfterAnotherSharesHisLook) {
  EXPECT_EQ(Get(), 1);
  now_ += absl::Milliseconds(49);
  EXPECT_EQ(Get(), 1);
  // Of the look, not of the last viewer.
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(Get(), 2);
  now_ -= absl::Milliseconds(1);
  EXPECT_EQ(Get(), 3) << "the clock was set back";
}

TEST_F(RecentStatsTest, EachCacheHasItsOwn) {
  EXPECT_EQ(Get(), 1);
  EXPECT_EQ(Get("a"), 2);
  EXPECT_EQ(Get(), 1);
  EXPECT_EQ(Get("a"), 2);
}

TEST_F(RecentStatsTest, ErrorsAreNotKept) {
  status_ = absl::NotFoundError("no such cache");
  EXPECT_EQ(Get("a"), -1);
  status_ = absl::OkStatus();
  EXPECT_EQ(Get("a"), 1);
}

}  // namespace
}  // namespace kvtier
