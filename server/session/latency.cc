#include "server/session/latency.h"

#include <algorithm>

namespace kvtier {

const char* OperationName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kSwapIn:
      return "swap_in";
    case OperationKind::kReplayPlan:
      return "replay_plan";
    case OperationKind::kBackup:
      return "backup";
  }
  return "";
}

void LatencyHistogram::Add(absl::Duration duration) {
  const int64_t microseconds = std::max<int64_t>(absl::ToInt64Microseconds(duration), 0);
  const auto bucket = std::lower_bound(kLatencyBoundsMicroseconds.begin(),
                                       kLatencyBoundsMicroseconds.end(), microseconds);
  counts_[bucket - kLatencyBoundsMicroseconds.begin()].fetch_add(1, std::memory_order_relaxed);
  sum_microseconds_.fetch_add(microseconds, std::memory_order_relaxed);
}

LatencyCounts LatencyHistogram::Read() const {
  LatencyCounts read;
  for (size_t i = 0; i < counts_.size(); ++i) {
    read.counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  read.sum_microseconds = sum_microseconds_.load(std::memory_order_relaxed);
  return read;
}

}  // namespace kvtier
