// The memory that an AttachCache answer names, mapped into this process, and the arrays in it.
//
// Nothing of the answer is trusted: a descriptor must hold the bytes that it is said to hold and
// must be sealed so that it can't shrink, an array must lie inside its segment, be aligned, be as
// long as the layout makes it and stand in a segment of its own kind. Internal to client/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache_shape.h"
#include "client/cache_view.h"
#include "client/device.h"
#include "client/mapping.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// One segment of an answer.
struct MappedSegment {
  v1::SegmentKind kind;
  bool read_only;
  Mapping mapping;
};

// What the kernels need of one group, beside its view. Points into the mapped segments.
struct GroupKernelArrays {
  GroupState state;
  RowTracking tracking;
  Plan plan;
  std::vector<LayerView> layers;
  int32_t* hot_indices = nullptr;
  int32_t* miss_mask = nullptr;
  int32_t* valid_counts = nullptr;
  StatsBlock* stats = nullptr;
};

// All of an attached cache's memory.
class CacheMemory {
 public:
  // Maps every segment of `answer` on `device` and finds the arrays of a cache of `shape` in them.
  // On failure nothing stays mapped. Errors: as Device::Map, and INTERNAL / INTERNAL naming the
  // array that is wrong.
  static absl::StatusOr<CacheMemory> Map(const v1::AttachCacheResponse& answer,
                                         const CacheShape& shape, Device* device,
                                         const RedeemToken& redeem);

  const CacheView& view() const { return view_; }
  const GroupKernelArrays& kernel_arrays(int32_t group) const { return kernel_arrays_[group]; }

 private:
  CacheMemory() = default;

  std::map<int32_t, MappedSegment> segments_;  // by segment_index
  CacheView view_;
  std::vector<GroupKernelArrays> kernel_arrays_;
};

}  // namespace kvtier::client
