// One session's hot memory of one cache on one device.
//
//   auto tier = HotTier::Create(layout, host, "CPU-0", backend);
//   (*tier)->EnqueueInitialState(stream);
//   stream->SwapIn((*tier)->MakeSwapIn(0, (*tier)->StepBuffers(0, 4), {}, false));
//
// Three allocations: hot rows; state (owner, LRU order, index, scores, directory, kept rows'
// slots, block table, sequence lengths, statistics); step buffers. The tier knows where everything
// lies and builds the parameters of kernels from it; it enqueues nothing by itself but what its
// Enqueue functions say. Device memory is written and read through device streams alone.
//
// Immutable after Create, so thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/counters.h"
#include "server/core/cache_layout.h"
#include "server/device/backend.h"
#include "server/hot_tier/step_arrays.h"

namespace kvtier {

// The cache's memory on the host, as kernels reach it. Outlives every tier of the cache.
struct HostView {
  uint8_t* rows = nullptr;               // the cache's part of the host pool
  int32_t* block_generation = nullptr;   // [block_count]
  uint8_t* backed_generation = nullptr;  // [group] int32 [slot_count], by TrackingGeometry
};

// Layers [first, first + count) of a group.
struct LayerSpan {
  int32_t first = 0;
  int32_t count = 0;
};

// Rows to back up; shapes as in BackupParams. Device pointers.
struct BackupArrays {
  int32_t num_rows = 0;
  const int32_t* num_real_rows = nullptr;
  const int32_t* row_to_request = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* source_rows = nullptr;  // null: newest rows
};

class HotTier {
 public:
  // `layout` is valid. Errors: those of DeviceBackend::Allocate; nothing stays allocated.
  static absl::StatusOr<std::unique_ptr<HotTier>> Create(const CacheLayout& layout,
                                                         const HostView& host,
                                                         absl::string_view device_uuid,
                                                         DeviceBackend* backend);

  // Every region empty, block table and sequence lengths -1, no real rows. Does not wait.
  absl::Status EnqueueInitialState(DeviceStream* stream) const;
  // Region `region` of every group empty, its sequence length unknown. Does not wait.
  absl::Status EnqueueResetRegion(DeviceStream* stream, int32_t region) const;
  // Entries of a region's row of the block table. Does not wait.
  absl::Status EnqueueTableWrite(DeviceStream* stream, int32_t region, int32_t first_entry,
                                 const std::vector<int32_t>& block_ids) const;
  // Drops copies of `blocks` in the first `region_count` regions of `group`. The group's counter of
  // dropped copies before and after is read into `before` and `after` (live until a later Notify
  // has run).
  absl::Status EnqueueInvalidate(DeviceStream* stream, int group, int32_t region_count,
                                 const std::vector<int32_t>& blocks, int64_t* before,
                                 int64_t* after) const;

  // Copies the statistics of `group` (`block` lives until a later Notify has run).
  absl::Status EnqueueReadStats(DeviceStream* stream, int group, StatsBlock* block) const;

  // The step buffers of `group`.
  StepArrays StepBuffers(int group, int32_t num_rows) const;
  BackupArrays StepBufferBackup(int32_t num_rows) const;

  SwapInParams MakeSwapIn(int group, const StepArrays& arrays, LayerSpan layers,
                          bool use_slots) const;
  ReplayPlanParams MakeReplayPlan(int group, int32_t num_rows, LayerSpan layers) const;
  BackupParams MakeBackup(int group, const BackupArrays& arrays) const;

  // Counters of `group` at one moment. Never waits. The one place where device memory is read
  // without a device stream; only where the device's memory is the host's (CPU backend).
  Counts ReadCounts(int group) const;

  int group_count() const { return static_cast<int>(shapes_.size()); }
  int32_t LayerCount(int group) const { return static_cast<int32_t>(layers_[group].size()); }
  const GroupShape& shape(int group) const { return shapes_[group]; }
  const DeviceMemory& hot() const { return *hot_; }
  const DeviceMemory& state() const { return *state_; }
  const DeviceMemory& step() const { return *step_; }
  int64_t device_bytes() const;

 private:
  HotTier(const CacheLayout& layout, const HostView& host);

  void PlaceLayers();
  GroupState StateOf(int group) const;
  RowTracking TrackingOf(int group) const;
  StatsBlock* StatsOf(int group) const;
  template <typename T>
  T* InState(const ArrayExtent& extent) const;
  int32_t* InStep(const ArrayExtent& extent) const;

  const CacheLayout layout_;
  const HostView host_;
  const HostGeometry host_geometry_;
  const TrackingGeometry tracking_;
  const TierGeometry geometry_;
  std::vector<GroupShape> shapes_;              // [group]
  std::vector<std::vector<LayerView>> layers_;  // [group][layer]
  std::unique_ptr<DeviceMemory> hot_, state_, step_;
};

}  // namespace kvtier
