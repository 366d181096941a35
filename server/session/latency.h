// How long operations took, in a few buckets.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace kvtier {

enum class OperationKind : int32_t { kSwapIn, kReplayPlan, kBackup };
inline constexpr int32_t kOperationKindCount = 3;
// "swap_in"
const char* OperationName(OperationKind kind);

// A bucket holds what took no longer than its bound, and longer than the one before. From below
// what a call costs at all to far above what anybody waits for.
inline constexpr std::array<int64_t, 19> kLatencyBoundsMicroseconds = {
    10,    25,    50,     100,    250,    500,     1000,    2500,    5000,    10000,
    25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000, 10000000};

struct LatencyCounts {
  // One more than there are bounds: the last is of what took longer.
  std::array<int64_t, kLatencyBoundsMicroseconds.size() + 1> counts{};
  int64_t sum_microseconds = 0;
};

// Thread-safe, without a lock; a reader may see an operation in its bucket and not yet in the sum.
class LatencyHistogram {
 public:
  // What took less than no time (a clock was set back) took none.
  void Add(absl::Duration duration);
  LatencyCounts Read() const;

 private:
  std::array<std::atomic<int64_t>, kLatencyBoundsMicroseconds.size() + 1> counts_{};
  std::atomic<int64_t> sum_microseconds_{0};
};

}  // namespace kvtier
