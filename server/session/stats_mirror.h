// Counters of memory that the host cannot read, as they were when last looked at.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/counters.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/hot_tier/hot_tier.h"

namespace kvtier {

// Statistics lie in device memory, where kernels count; only the CPU backend's can be read in
// place. On other devices they come back through the device stream: with each operation of the
// daemon those of its groups, and all of them each time somebody asks, for the next one who asks.
// Asking itself never waits.
//
// Thread-safe.
class StatsMirror {
 public:
  // One copy on its way. Lives until the device is done.
  struct Reading {
    int first_group = 0;
    std::vector<StatsBlock> blocks;
  };

  explicit StatsMirror(int group_count)
      : counts_(group_count), torn_(group_count, 0), imbalance_(group_count, 0) {}

  // Enqueues the copy of groups [first_group, first_group + group_count).
  absl::Status Enqueue(DeviceStream* stream, const HotTier& tier, int first_group, int group_count,
                       Reading* reading) const;
  // The copy is there.
  void Arrive(const Reading& reading);

  Counts Get(int group) const;

 private:
  // A worker's kernel may be adding its counts while they are copied. Such a copy is passed over,
  // but not for ever: a kernel that died half-way leaves it so, and each number in it is right by
  // itself.
  static constexpr int kTornMax = 4;

  mutable Mutex mutex_;                                   // rank: a leaf
  std::vector<Counts> counts_ KVTIER_GUARDED_BY(mutex_);  // [group]
  std::vector<int> torn_ KVTIER_GUARDED_BY(mutex_);       // [group] copies passed over in a row
  // [group] what a kernel that died half-way left
  std::vector<uint32_t> imbalance_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
