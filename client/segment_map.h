// The memory that an AttachCache answer names, mapped into this process, and the arrays in it.
//
// Nothing of the answer is trusted: a descriptor must hold the bytes that it is said to hold and
// must be sealed so that it can't shrink, an array must lie inside its segment, be aligned, be as
// long as the layout makes it and stand in a segment of its own kind. Internal to client/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache_shape.h"
#include "client/cache_view.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// Redeems a token for a descriptor, which the caller closes.
using RedeemToken = std::function<absl::StatusOr<int>(const std::string& token)>;

// One mapping; unmaps on destruction.
class MappedSegment {
 public:
  // Maps `segment`. Errors: UNIMPLEMENTED / NOT_IMPLEMENTED for transports that this library
  // cannot map, INTERNAL / INTERNAL for a descriptor that is not what the segment says,
  // RESOURCE_EXHAUSTED where the system has no room, and those of `redeem`.
  static absl::StatusOr<MappedSegment> Map(const v1::Segment& segment, const RedeemToken& redeem);

  MappedSegment(MappedSegment&& other) noexcept;
  MappedSegment& operator=(MappedSegment&& other) noexcept;
  ~MappedSegment();

  v1::SegmentKind kind() const { return kind_; }
  bool read_only() const { return read_only_; }
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  MappedSegment() = default;

  v1::SegmentKind kind_ = v1::SEGMENT_KIND_UNSPECIFIED;
  bool read_only_ = false;
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
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
  // Maps every segment of `answer` and finds the arrays of a cache of `shape` in them. On
  // failure nothing stays mapped. Errors: as MappedSegment::Map, and INTERNAL / INTERNAL naming
  // the array that is wrong.
  static absl::StatusOr<CacheMemory> Map(const v1::AttachCacheResponse& answer,
                                         const CacheShape& shape, const RedeemToken& redeem);

  const CacheView& view() const { return view_; }
  const GroupKernelArrays& kernel_arrays(int32_t group) const { return kernel_arrays_[group]; }

 private:
  CacheMemory() = default;

  std::map<int32_t, MappedSegment> segments_;  // by segment_index
  CacheView view_;
  std::vector<GroupKernelArrays> kernel_arrays_;
};

}  // namespace kvtier::client
