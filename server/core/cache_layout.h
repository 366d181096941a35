// What two processes must agree on to share a cache, and the sizes that follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout.h"
#include "kernels/params.h"

namespace kvtier {

// Layers that share one top-k; layers[0] is the leader.
struct GroupLayout {
  std::vector<RowLayout> layers;
  int32_t top_k = 0;
  int32_t hot_size = 0;
};

struct CacheLayout {
  std::vector<GroupLayout> groups;
  int32_t block_size = 64;
  int32_t block_count = 0;
  int32_t max_requests = 0;
  int32_t rows_per_request = 1;
  int32_t max_blocks_per_request = 0;
  int32_t step_rows = 0;
  std::string dtype_tag;
  EvictionPolicy eviction_policy = EvictionPolicy::kLru;
  bool share_rows = false;

  int32_t slot_count() const { return block_size * block_count; }
};

// INVALID_ARGUMENT / LAYOUT_INVALID with field, value and limit, or OK. Allocates nothing.
absl::Status ValidateLayout(const CacheLayout& layout);

// FAILED_PRECONDITION / LAYOUT_MISMATCH naming the first field that differs, or OK.
absl::Status CompareLayouts(const CacheLayout& expected, const CacheLayout& actual);

// Rows between the regions of group `group` in its hot buffer.
int32_t RegionStrideOf(const CacheLayout& layout, int group);

// Sizes of group `group` of a valid layout.
GroupShape ShapeOf(const CacheLayout& layout, int group);

// An array inside a segment.
struct ArrayExtent {
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

// The cache's part of the host pool: where each layer's rows start, from the part's start.
struct HostGeometry {
  std::vector<std::vector<ArrayExtent>> layers;  // [group][layer]
  int64_t size_bytes = 0;                        // a multiple of kPoolAlignmentBytes
};
HostGeometry HostGeometryOf(const CacheLayout& layout);

// So many neighbouring blocks take kNeighbourhoodBytes in every layer. Fewer where there would not
// be a neighbourhood for each request: so small a pool is gathered fast anyway.
int32_t NeighbourhoodBlocksOf(const CacheLayout& layout);

// One layer group's arrays in a session's segments; shapes as in proto GroupBuffers.
struct GroupGeometry {
  std::vector<ArrayExtent> hot;                                  // [layer], in the hot segment
  ArrayExtent owner, lru, index, score, directory, kept, stats;  // in the state segment
  ArrayExtent topk, hot_indices, miss_mask, valid_counts;        // in the step segment
  ArrayExtent plan_slots, plan_hot_rows, plan_counts;            // in the step segment
};

// One session's memory on one cache.
struct TierGeometry {
  std::vector<GroupGeometry> groups;
  ArrayExtent block_table, sequence_lengths;               // in the state segment
  ArrayExtent row_to_request, newest_slot, num_real_rows;  // in the step segment
  int64_t hot_bytes = 0, state_bytes = 0, step_bytes = 0;
};
TierGeometry TierGeometryOf(const CacheLayout& layout);

// Block and row generations of a cache.
struct TrackingGeometry {
  ArrayExtent block_generation;                // its own segment, int32 [block_count]
  std::vector<ArrayExtent> backed_generation;  // [group] in one segment, int32 [slot_count]
  int64_t backed_bytes = 0;
};
TrackingGeometry TrackingGeometryOf(const CacheLayout& layout);

}  // namespace kvtier
