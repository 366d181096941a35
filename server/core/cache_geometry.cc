// The sizes that follow from a layout that ValidateLayout has accepted.

#include <algorithm>
#include <utility>

#include "kernels/region_index.h"
#include "server/core/cache_layout.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

constexpr int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Places arrays one after another in a segment.
class Placer {
 public:
  ArrayExtent Place(int64_t size_bytes) {
    const ArrayExtent extent = {.offset_bytes = end_bytes_, .size_bytes = size_bytes};
    end_bytes_ = AlignUp(end_bytes_ + size_bytes, kArrayAlignmentBytes);
    return extent;
  }
  template <typename T>
  ArrayExtent PlaceArray(int64_t count) {
    return Place(count * static_cast<int64_t>(sizeof(T)));
  }
  int64_t end_bytes() const { return end_bytes_; }

 private:
  int64_t end_bytes_ = 0;
};

}  // namespace

int32_t RegionStrideOf(const CacheLayout& layout, int group) {
  return RegionStride(layout.groups[group].hot_size,
                      ReservedRows(layout.rows_per_request, layout.eviction_policy));
}

GroupShape ShapeOf(const CacheLayout& layout, int group) {
  const GroupLayout& g = layout.groups[group];
  GroupShape shape;
  shape.top_k = g.top_k;
  shape.hot_size = g.hot_size;
  shape.region_count = layout.max_requests;
  shape.region_stride = RegionStrideOf(layout, group);
  shape.rows_per_request = layout.rows_per_request;
  shape.block_size = layout.block_size;
  shape.slot_count = layout.slot_count();
  shape.max_blocks = layout.max_blocks_per_request;
  shape.policy = layout.eviction_policy;
  return shape;
}

HostGeometry HostGeometryOf(const CacheLayout& layout) {
  HostGeometry geometry;
  Placer host;
  for (const GroupLayout& group : layout.groups) {
    std::vector<ArrayExtent>& layers = geometry.layers.emplace_back();
    for (const RowLayout& row : group.layers) {
      layers.push_back(host.Place(StorageBytes(row, layout.slot_count())));
    }
  }
  geometry.size_bytes = AlignUp(host.end_bytes(), kPoolAlignmentBytes);
  return geometry;
}

int32_t NeighbourhoodBlocksOf(const CacheLayout& layout) {
  int64_t block_bytes_min = kNeighbourhoodBytes;
  for (const GroupLayout& group : layout.groups) {
    for (const RowLayout& row : group.layers) {
      block_bytes_min = std::min(block_bytes_min, StorageBytes(row, layout.block_size));
    }
  }
  const int64_t blocks = (kNeighbourhoodBytes + block_bytes_min - 1) / block_bytes_min;
  const int32_t share = std::max(layout.block_count / layout.max_requests, 1);
  return static_cast<int32_t>(std::min(blocks, int64_t{std::min(share, kNeighbourhoodBlocksMax)}));
}

TierGeometry TierGeometryOf(const CacheLayout& layout) {
  TierGeometry geometry;
  Placer hot, state, step;
  const int64_t requests = layout.max_requests;
  const int64_t rows = layout.step_rows;

  geometry.block_table = state.PlaceArray<int32_t>(requests * layout.max_blocks_per_request);
  geometry.sequence_lengths = state.PlaceArray<int32_t>(requests);
  geometry.num_real_rows = step.PlaceArray<int32_t>(1);
  geometry.row_to_request = step.PlaceArray<int32_t>(rows);
  geometry.newest_slot = step.PlaceArray<int32_t>(rows);
  for (size_t i = 0; i < layout.groups.size(); ++i) {
    const GroupShape shape = ShapeOf(layout, static_cast<int>(i));
    const int64_t entries = rows * shape.top_k;
    GroupGeometry& group = geometry.groups.emplace_back();
    for (const RowLayout& row : layout.groups[i].layers) {
      group.hot.push_back(hot.Place(StorageBytes(row, requests * shape.region_stride)));
    }
    group.owner = state.PlaceArray<int32_t>(requests * shape.hot_size);
    group.lru = state.PlaceArray<int16_t>(requests * shape.hot_size);
    group.index = state.PlaceArray<uint16_t>(requests * RegionIndexLength(shape.hot_size));
    const bool has_scores = shape.policy == EvictionPolicy::kAged;
    group.score = state.PlaceArray<uint8_t>(has_scores ? requests * shape.hot_size : 0);
    group.directory = state.PlaceArray<int32_t>(
        layout.share_rows ? int64_t{kDirectoryWords} * shape.slot_count : 0);
    group.kept = state.PlaceArray<int32_t>(has_scores ? requests * shape.rows_per_request : 0);
    group.stats = state.PlaceArray<StatsBlock>(1);
    group.topk = step.PlaceArray<int32_t>(entries);
    group.hot_indices = step.PlaceArray<int32_t>(entries);
    group.miss_mask = step.PlaceArray<int32_t>(entries);
    group.valid_counts = step.PlaceArray<int32_t>(rows);
    group.plan_slots = step.PlaceArray<int32_t>(entries);
    group.plan_hot_rows = step.PlaceArray<int32_t>(entries);
    group.plan_counts = step.PlaceArray<int32_t>(rows);
  }
  geometry.hot_bytes = hot.end_bytes();
  geometry.state_bytes = state.end_bytes();
  geometry.step_bytes = step.end_bytes();
  return geometry;
}

TrackingGeometry TrackingGeometryOf(const CacheLayout& layout) {
  TrackingGeometry geometry;
  Placer blocks, rows;
  geometry.block_generation = blocks.PlaceArray<int32_t>(layout.block_count);
  for (size_t i = 0; i < layout.groups.size(); ++i) {
    geometry.backed_generation.push_back(rows.PlaceArray<int32_t>(layout.slot_count()));
  }
  geometry.backed_bytes = rows.end_bytes();
  return geometry;
}

}  // namespace kvtier
