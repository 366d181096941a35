// Small caches and rows for tests against a real daemon.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "gtest/gtest.h"
#include "kernels/layout.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::e2e {

inline constexpr int32_t kBlockSize = 4;
inline constexpr int32_t kTopK = 4;
inline constexpr int32_t kRowBytes = 64;

// One group of one layer.
inline v1::CacheLayout TinyLayout(int32_t block_count = 8, int32_t max_requests = 2) {
  v1::CacheLayout layout;
  layout.set_block_size(kBlockSize);
  layout.set_block_count(block_count);
  layout.set_max_requests(max_requests);
  v1::LayerGroupLayout* group = layout.add_groups();
  group->set_top_k(kTopK);
  v1::LayerLayout* layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
  layer->set_row_bytes(kRowBytes);
  return layout;
}

inline absl::StatusOr<client::Cache> AttachTiny(const client::Session& session,
                                                int32_t block_count = 8) {
  return client::Cache::Attach(
      session,
      {.cache = "tiny", .layout = TinyLayout(block_count), .wait_for_pool = absl::Minutes(1)});
}

// Backs up rows of `value` to positions [first, first + count) of `request`, from this process.
inline absl::Status BackupRows(client::Cache* cache, const client::Request& request, int32_t first,
                               int32_t count, uint8_t value) {
  const std::vector<uint8_t> bytes(static_cast<size_t>(count) * kRowBytes, value);
  std::vector<int32_t> rows(count), slots(count), regions(count, request.region());
  for (int32_t i = 0; i < count; ++i) {
    rows[i] = i;
    slots[i] = request.SlotOf(first + i);
  }
  const std::vector<client::TensorLayer> tensor = {
      {bytes.data(), {.value_bytes = kRowBytes, .row_stride = kRowBytes}}};
  return cache->BackupTensor(0, tensor, count, rows, slots, regions);
}

// Inputs of a step of one row: `positions` of `request`, filled up with -1.
inline void SetStep(client::Cache* cache, const client::Request& request,
                    const std::vector<int32_t>& positions, int32_t newest_slot = -1) {
  const client::CacheView& view = cache->view();
  for (int32_t i = 0; i < kTopK; ++i) {
    view.groups[0].topk[i] = i < static_cast<int32_t>(positions.size()) ? positions[i] : -1;
  }
  view.row_to_request[0] = request.region();
  view.newest_slot[0] = newest_slot;
  *view.num_real_rows = 1;
}

// The byte that the row of the step's `index`-th position consists of; -1 if it is masked or mixed.
inline int ValueAt(const client::Cache& cache, int32_t index) {
  const client::GroupView& group = cache.view().groups[0];
  const std::span<const uint8_t> row = group.layers[0].hot.value(group.hot_indices[index]);
  if (row.empty()) return -1;
  return std::all_of(row.begin(), row.end(), [&](uint8_t b) { return b == row[0]; }) ? row[0] : -1;
}

}  // namespace kvtier::e2e
