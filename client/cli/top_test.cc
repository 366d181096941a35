#include "client/cli/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/cli/views.h"

namespace kvtier::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GetStatsResponse Stats() {
  v1::GetStatsResponse stats;
  stats.set_boot_id("0123456789abcdef");
  stats.mutable_start_time()->set_seconds(1000);
  stats.mutable_time()->set_seconds(1000 + 3 * 3600);
  stats.set_sessions(2);
  stats.mutable_pool()->set_state(v1::POOL_STATE_READY);
  stats.mutable_pool()->set_total_bytes(int64_t{8} << 30);
  stats.mutable_pool()->set_used_bytes(int64_t{2} << 30);
  stats.mutable_counters()->set_hit_rate(0.5);
  stats.mutable_window()->set_hit_rate(0.75);
  stats.mutable_window()->set_bytes_copied_per_second(12.5e9);
  v1::CacheStats* cache = stats.add_caches();
  cache->set_cache("kv");
  v1::SessionCacheStats* session = cache->add_sessions();
  session->set_requests(3);
  session->set_requests_max(8);
  session->set_hot_rows_total(8192);
  session->set_hot_rows_used(3072);
  v1::OperationStats* operation = cache->add_operations();
  operation->set_operation("swap_in");
  for (const int64_t bound : {10, 100, 1000}) operation->add_bound_microseconds(bound);
  for (const int64_t count : {0, 98, 1, 1}) operation->add_counts(count);
  operation->set_count(100);
  return stats;
}

TEST(TopFrame, ShowsWhatMatters) {
  Top top("0.1.0");
  const std::string frame = top.Frame(Stats(), {.columns = 200, .rows = 50});
  EXPECT_THAT(frame,
              HasSubstr("kvtierd 0.1.0  boot 0123456789abcdef  up 3h 0m  2 sessions  ready"));
  EXPECT_THAT(frame, HasSubstr("hit rate       [##################......] 75.0 % lately, 50.0 %"));
  EXPECT_THAT(frame, HasSubstr("host to device [###############.........] 12.5 GB/s of 20 GB/s"));
  EXPECT_THAT(frame, HasSubstr("device to host [........................] 0 B/s"));
  EXPECT_THAT(frame, HasSubstr("pool used      [######..................] 2 GiB of 8 GiB"));
  EXPECT_THAT(frame, HasSubstr("hot rows       [#########...............] 3,072 of 8,192"));
  EXPECT_THAT(frame, HasSubstr("3/8"));
  EXPECT_THAT(frame, HasSubstr("100 us"));
  EXPECT_THAT(frame, HasSubstr("1 ms"));
  EXPECT_THAT(frame, Not(HasSubstr("\x1b")));
}

TEST(TopFrame, TheScaleOfBandwidthStays) {
  Top top("0.1.0");
  v1::GetStatsResponse stats = Stats();
  top.Frame(stats, {});
  stats.mutable_window()->set_bytes_copied_per_second(5e9);
  EXPECT_THAT(top.Frame(stats, {.columns = 200}), HasSubstr("5 GB/s of 20 GB/s"));
}

TEST(TopFrame, FitsTheScreen) {
  Top top("0.1.0");
  for (int rows = 1; rows < 20; ++rows) {
    const std::string frame = top.Frame(Stats(), {.columns = 20, .rows = rows});
    const std::vector<std::string> lines = absl::StrSplit(frame, '\n', absl::SkipEmpty());
    EXPECT_LE(static_cast<int>(lines.size()), std::max(rows - 1, 1));
    for (const std::string& line : lines) EXPECT_LE(line.size(), 20u);
  }
}

TEST(TopFrame, AnEmptyDaemonShowsZeros) {
  Top top("0.1.0");
  const std::string frame = top.Frame(v1::GetStatsResponse(), {.columns = 200, .rows = 50});
  EXPECT_THAT(frame, HasSubstr("no caches"));
  EXPECT_THAT(frame, HasSubstr("] - lately, - since the start"));
  EXPECT_THAT(frame, HasSubstr("] 0 B/s, 0 rows/s"));
}

TEST(Views, QuantilesAreBucketBounds) {
  const v1::OperationStats operation = Stats().caches(0).operations(0);
  EXPECT_EQ(Quantile(operation, 0.5), 100);
  EXPECT_EQ(Quantile(operation, 0.99), 1000);
  EXPECT_EQ(Quantile(operation, 1), -1);
  EXPECT_EQ(Quantile(v1::OperationStats(), 0.5), -1);
}

}  // namespace
}  // namespace kvtier::cli
