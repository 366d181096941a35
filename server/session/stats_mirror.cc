#include "server/session/stats_mirror.h"

#include <algorithm>

#include "kernels/stats_block.h"
#include "server/core/status_macros.h"

namespace kvtier {

absl::Status StatsMirror::Enqueue(DeviceStream* stream, const HotTier& tier, int first_group,
                                  int group_count, Reading* reading) const {
  reading->first_group = first_group;
  reading->blocks.resize(group_count);
  for (int i = 0; i < group_count; ++i) {
    KVTIER_RETURN_IF_ERROR(tier.EnqueueReadStats(stream, first_group + i, &reading->blocks[i]));
  }
  return absl::OkStatus();
}

void StatsMirror::Arrive(const Reading& reading) {
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < reading.blocks.size(); ++i) {
    const size_t group = reading.first_group + i;
    const StatsBlock& block = reading.blocks[i];
    const uint32_t imbalance = Imbalance(block);
    if (imbalance != imbalance_[group] && imbalance != 0 && ++torn_[group] <= kTornMax) continue;
    torn_[group] = 0;
    imbalance_[group] = imbalance;
    // Copies may arrive out of order where a kernel of another process counted in between.
    for (int32_t c = 0; c < kCounterCount; ++c) {
      counts_[group].values[c] = std::max(counts_[group].values[c], block.counts[c]);
    }
  }
}

Counts StatsMirror::Get(int group) const {
  MutexLock lock(&mutex_);
  return counts_[group];
}

}  // namespace kvtier
