#include "server/session/latency.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(Latency, CountsWhatTookNoLongerThanTheBound) {
  LatencyHistogram histogram;
  histogram.Add(absl::Microseconds(-5));
  histogram.Add(absl::Microseconds(10));
  histogram.Add(absl::Microseconds(11));
  histogram.Add(absl::Seconds(10));
  histogram.Add(absl::Seconds(11));
  const LatencyCounts read = histogram.Read();
  EXPECT_EQ(read.counts.front(), 2);
  EXPECT_EQ(read.counts[1], 1);
  EXPECT_EQ(read.counts[kLatencyBoundsMicroseconds.size() - 1], 1);
  EXPECT_EQ(read.counts.back(), 1);
  EXPECT_EQ(read.sum_microseconds, 21000021);
}

TEST(Latency, BoundsRise) {
  for (size_t i = 1; i < kLatencyBoundsMicroseconds.size(); ++i) {
    EXPECT_LT(kLatencyBoundsMicroseconds[i - 1], kLatencyBoundsMicroseconds[i]);
  }
}

}  // namespace
}  // namespace kvtier
