// Sizes and places of arrays, by property over random valid layouts.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/region_index.h"
#include "server/core/cache_layout.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

int32_t Draw(std::mt19937_64& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

RowLayout RandomRow(std::mt19937_64& random, int32_t block_size) {
  RowLayout row;
  row.value_bytes = 16 * Draw(random, 1, 256);
  if (Draw(random, 0, 1) == 0) {
    row.row_stride = row.value_bytes + 16 * Draw(random, 0, 3);
    return row;
  }
  row.format = RowFormat::kSplitPage;
  row.scale_bytes = 4 * Draw(random, 1, 8);
  row.page_rows = block_size;
  row.page_bytes = (int64_t{block_size} * RowBytes(row) + 15) / 16 * 16 + 16 * Draw(random, 0, 9);
  return row;
}

CacheLayout RandomLayout(std::mt19937_64& random) {
  CacheLayout layout;
  layout.block_size = Draw(random, 1, 200);
  layout.block_count = Draw(random, 1, 100000);
  layout.max_requests = Draw(random, 1, 300);
  layout.rows_per_request = Draw(random, 1, 4);
  layout.max_blocks_per_request = Draw(random, 1, layout.block_count);
  layout.step_rows = Draw(random, 1, 1000);
  if (Draw(random, 0, 1) == 0) layout.eviction_policy = EvictionPolicy::kAged;
  layout.share_rows = Draw(random, 0, 1) == 0;
  for (int g = Draw(random, 1, 4); g > 0; --g) {
    GroupLayout& group = layout.groups.emplace_back();
    group.top_k = Draw(random, 0, 2048);
    group.hot_size = std::max(1, group.top_k * layout.rows_per_request + Draw(random, 0, 999));
    for (int i = Draw(random, 1, 5); i > 0; --i) {
      group.layers.push_back(RandomRow(random, layout.block_size));
    }
  }
  return layout;
}

// Aligned, inside the segment, and none over another.
void ExpectPlaced(std::vector<ArrayExtent> extents, int64_t segment_bytes) {
  std::sort(extents.begin(), extents.end(), [](const ArrayExtent& a, const ArrayExtent& b) {
    return std::pair(a.offset_bytes, a.size_bytes) < std::pair(b.offset_bytes, b.size_bytes);
  });
  int64_t end = 0;
  for (const ArrayExtent& extent : extents) {
    EXPECT_EQ(extent.offset_bytes % kArrayAlignmentBytes, 0);
    EXPECT_GE(extent.size_bytes, 0);
    EXPECT_GE(extent.offset_bytes, end);
    end = extent.offset_bytes + extent.size_bytes;
  }
  EXPECT_LE(end, segment_bytes);
}

TEST(CacheGeometryTest, ArraysNeverOverlap) {
  std::mt19937_64 random(20250731);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const CacheLayout layout = RandomLayout(random);
    ASSERT_TRUE(ValidateLayout(layout).ok()) << ValidateLayout(layout);

    const HostGeometry host = HostGeometryOf(layout);
    EXPECT_EQ(host.size_bytes % kPoolAlignmentBytes, 0);
    std::vector<ArrayExtent> host_arrays;
    for (const auto& group : host.layers) {
      host_arrays.insert(host_arrays.end(), group.begin(), group.end());
    }
    ExpectPlaced(host_arrays, host.size_bytes);

    const TierGeometry tier = TierGeometryOf(layout);
    std::vector<ArrayExtent> hot, state = {tier.block_table, tier.sequence_lengths};
    std::vector<ArrayExtent> step = {tier.row_to_request, tier.newest_slot, tier.num_real_rows};
    for (const GroupGeometry& g : tier.groups) {
      hot.insert(hot.end(), g.hot.begin(), g.hot.end());
      state.insert(state.end(), {g.owner, g.lru, g.index, g.score, g.directory, g.kept, g.stats});
      step.insert(step.end(), {g.topk, g.hot_indices, g.miss_mask, g.valid_counts, g.plan_slots,
                               g.plan_hot_rows, g.plan_counts});
    }
    ExpectPlaced(hot, tier.hot_bytes);
    ExpectPlaced(state, tier.state_bytes);
    ExpectPlaced(step, tier.step_bytes);

    const TrackingGeometry tracking = TrackingGeometryOf(layout);
    ExpectPlaced(tracking.backed_generation, tracking.backed_bytes);
    if (HasFailure()) return;
  }
}

TEST(CacheGeometryTest, SizesAreThoseOfTheShapes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    const CacheLayout layout = RandomLayout(random);
    const HostGeometry host = HostGeometryOf(layout);
    const TierGeometry tier = TierGeometryOf(layout);
    const TrackingGeometry tracking = TrackingGeometryOf(layout);
    const int64_t regions = layout.max_requests, rows = layout.step_rows;
    const int64_t slots = int64_t{layout.block_size} * layout.block_count;
    ASSERT_EQ(tier.groups.size(), layout.groups.size());
    ASSERT_EQ(tracking.backed_generation.size(), layout.groups.size());
    EXPECT_EQ(tier.block_table.size_bytes, 4 * regions * layout.max_blocks_per_request);
    EXPECT_EQ(tier.sequence_lengths.size_bytes, 4 * regions);
    EXPECT_EQ(tier.row_to_request.size_bytes, 4 * rows);
    EXPECT_EQ(tier.newest_slot.size_bytes, 4 * rows);
    EXPECT_EQ(tier.num_real_rows.size_bytes, 4);
    EXPECT_EQ(tracking.block_generation.size_bytes, 4 * int64_t{layout.block_count});
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const GroupLayout& group = layout.groups[g];
      const GroupGeometry& arrays = tier.groups[g];
      const GroupShape shape = ShapeOf(layout, static_cast<int>(g));
      EXPECT_EQ(arrays.owner.size_bytes, 4 * regions * group.hot_size);
      EXPECT_EQ(arrays.lru.size_bytes, 2 * regions * group.hot_size);
      EXPECT_EQ(arrays.index.size_bytes, 2 * regions * RegionIndexLength(group.hot_size));
      const bool has_scores = layout.eviction_policy == EvictionPolicy::kAged;
      EXPECT_EQ(shape.policy, layout.eviction_policy);
      EXPECT_EQ(arrays.score.size_bytes, has_scores ? regions * group.hot_size : 0);
      EXPECT_EQ(arrays.kept.size_bytes, has_scores ? 4 * regions * shape.rows_per_request : 0);
      const int32_t reserved = (has_scores ? 2 : 1) * layout.rows_per_request;
      EXPECT_EQ(shape.region_stride, RegionStride(group.hot_size, reserved));
      EXPECT_EQ(arrays.directory.size_bytes, layout.share_rows ? int64_t{8} * shape.slot_count : 0);
      EXPECT_EQ(arrays.stats.size_bytes, static_cast<int64_t>(sizeof(StatsBlock)));
      for (const ArrayExtent& entries : {arrays.topk, arrays.hot_indices, arrays.miss_mask,
                                         arrays.plan_slots, arrays.plan_hot_rows}) {
        EXPECT_EQ(entries.size_bytes, 4 * rows * group.top_k);
      }
      EXPECT_EQ(arrays.valid_counts.size_bytes, 4 * rows);
      EXPECT_EQ(arrays.plan_counts.size_bytes, 4 * rows);
      EXPECT_EQ(tracking.backed_generation[g].size_bytes, 4 * slots);
      ASSERT_EQ(arrays.hot.size(), group.layers.size());
      ASSERT_EQ(host.layers[g].size(), group.layers.size());
      for (size_t l = 0; l < group.layers.size(); ++l) {
        EXPECT_EQ(host.layers[g][l].size_bytes, StorageBytes(group.layers[l], slots));
        EXPECT_EQ(arrays.hot[l].size_bytes,
                  StorageBytes(group.layers[l], regions * shape.region_stride));
      }
    }
  }
}

TEST(CacheGeometryTest, ShapeOfAGroup) {
  CacheLayout layout;
  layout.groups = {{.top_k = 8, .hot_size = 16}, {.top_k = 100, .hot_size = 300}};
  layout.block_size = 32;
  layout.block_count = 10;
  layout.max_requests = 3;
  layout.rows_per_request = 2;
  layout.max_blocks_per_request = 5;
  const GroupShape shape = ShapeOf(layout, 1);
  EXPECT_EQ(shape.top_k, 100);
  EXPECT_EQ(shape.hot_size, 300);
  EXPECT_EQ(shape.region_count, 3);
  EXPECT_EQ(shape.region_stride, 384);
  EXPECT_EQ(shape.rows_per_request, 2);
  EXPECT_EQ(shape.block_size, 32);
  EXPECT_EQ(shape.slot_count, 320);
  EXPECT_EQ(shape.max_blocks, 5);
}

TEST(CacheGeometryTest, K16_OffsetsPassInt32) {
  CacheLayout layout;
  layout.groups = {
      {.layers = {{.value_bytes = 656, .row_stride = 656}, {.value_bytes = 656, .row_stride = 656}},
       .top_k = 2048,
       .hot_size = 4096}};
  layout.block_count = 33554431;  // the most blocks of 64 slots
  layout.max_requests = 65536;
  layout.max_blocks_per_request = 1;
  layout.step_rows = 65536;
  ASSERT_TRUE(ValidateLayout(layout).ok()) << ValidateLayout(layout);
  const int64_t rows_bytes = int64_t{33554431} * 64 * 656;
  EXPECT_EQ(HostGeometryOf(layout).layers[0][0].size_bytes, rows_bytes);
  EXPECT_GE(HostGeometryOf(layout).layers[0][1].offset_bytes, rows_bytes);
  EXPECT_EQ(TierGeometryOf(layout).groups[0].hot[0].size_bytes, int64_t{65536} * 4224 * 656);
  EXPECT_EQ(TierGeometryOf(layout).groups[0].topk.size_bytes, int64_t{65536} * 2048 * 4);
}

// The published layout of DeepSeek-V4's compressed cache, in the hot buffer as in the pool.
TEST(CacheGeometryTest, NeighbourhoodsOfBlocks) {
  CacheLayout layout;
  layout.block_size = 64;
  layout.block_count = 1'000'000;
  layout.max_requests = 64;
  layout.groups.resize(1);
  std::vector<RowLayout>& layers = layout.groups[0].layers;
  layers.push_back({.value_bytes = 656, .row_stride = 656});
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 50);  // of 41,984 bytes
  layers.push_back({.value_bytes = 1152, .row_stride = 1152});
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 50) << "in every layer";
  layers.push_back({.format = RowFormat::kSplitPage,
                    .value_bytes = 576,
                    .scale_bytes = 8,
                    .page_rows = 64,
                    .page_bytes = 37440});
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 57);
  layout.block_count = 64 * 20;
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 20) << "one for each request";
  layout.block_count = 63;
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 1);

  layout.max_requests = 1;
  layout.block_count = 1'000'000;
  layers = {{.value_bytes = 16, .row_stride = 16}};
  layout.block_size = 1;
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), kNeighbourhoodBlocksMax);
  layers = {{.value_bytes = 4096, .row_stride = 4096}};
  layout.block_size = 4096;
  EXPECT_EQ(NeighbourhoodBlocksOf(layout), 1) << "a block is larger";
}

TEST(CacheGeometryTest, SplitPagesAreWhole) {
  CacheLayout layout;
  layout.groups = {{.layers = {{.format = RowFormat::kSplitPage,
                                .value_bytes = 576,
                                .scale_bytes = 8,
                                .page_rows = 64,
                                .page_bytes = 37440}},
                    .top_k = 512,
                    .hot_size = 1024}};
  layout.block_count = 7;
  layout.max_requests = 3;
  layout.max_blocks_per_request = 7;
  layout.step_rows = 3;
  ASSERT_TRUE(ValidateLayout(layout).ok()) << ValidateLayout(layout);
  EXPECT_EQ(HostGeometryOf(layout).layers[0][0].size_bytes, 7 * 37440);
  EXPECT_EQ(TierGeometryOf(layout).groups[0].hot[0].size_bytes, 3 * 1152 / 64 * 37440);
}

}  // namespace
}  // namespace kvtier
