// The arrays of an attached cache: what a worker reads and writes without a call.
//
// Words and shapes as in the kernels (kernels/params.h). G layer groups; for one of them
// R = max_requests regions, N = step_rows, K = top_k, H = hot_size; S = block_size * block_count
// slots of the host pool. All of it is memory that the daemon and other workers map as well:
// nothing here is copied, and nothing is locked.
//
// On a GPU everything but host rows, the generations and `progress` is device memory:
// the addresses are for kernels and copies on the worker's streams, and the host must not touch
// them.
//
//   const CacheView& view = cache->view();
//   view.row_to_request[0] = request->region();
//   view.groups[0].topk[0] = position;                      // row 0, first position
//   std::span<uint8_t> row = view.groups[0].layers[1].hot.value(hot_row);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/counters.h"
#include "kernels/layout.h"
#include "kernels/params.h"

namespace kvtier::client {

// A stream of the worker's on the cache's device: a cudaStream_t on a GPU, null on a CPU.
using DeviceStreamRef = void*;

// The rows of one layer, in the host pool or in the hot buffer.
class Rows {
 public:
  Rows() = default;
  // `data` has StorageBytes(layout, row_count) bytes.
  Rows(uint8_t* data, const RowLayout& layout, int32_t row_count)
      : data_(data), layout_(layout), row_count_(row_count) {}

  int32_t row_count() const { return row_count_; }
  const RowLayout& layout() const { return layout_; }
  uint8_t* data() const { return data_; }

  // The bytes of `row`: of a contiguous layout all of them, of a split page its values.
  // Empty if `row` is not in [0, row_count).
  std::span<uint8_t> value(int32_t row) const {
    if (row < 0 || row >= row_count_) return {};
    return {data_ + ValueOffset(layout_, row), static_cast<size_t>(layout_.value_bytes)};
  }

  // The scales of `row` of a split page; empty for a contiguous layout or no such row.
  std::span<uint8_t> scale(int32_t row) const {
    if (layout_.format != RowFormat::kSplitPage || row < 0 || row >= row_count_) return {};
    return {data_ + ScaleOffset(layout_, row), static_cast<size_t>(layout_.scale_bytes)};
  }

 private:
  uint8_t* data_ = nullptr;
  RowLayout layout_;
  int32_t row_count_ = 0;
};

// One layer. Row `slot` of `host` belongs to the slot of that number; of `hot`, region r has the
// rows from r * region_stride: hot_size rows under LRU, then its newest rows, then (AGED) as many
// kept rows, which are the kernels'.
struct LayerRows {
  Rows host;  // [S] rows
  Rows hot;   // [R * region_stride] rows
};

// One layer group. Inputs are written by the worker before a step, outputs by the step.
struct GroupView {
  GroupShape shape;
  std::vector<LayerRows> layers;  // leader first

  std::span<int32_t> topk;                // in  [N, K] positions (or slots), -1 none
  std::span<const int32_t> hot_indices;   // out [N, K] absolute hot rows, -1 masked
  std::span<const int32_t> miss_mask;     // out [N, K] 1 at the first position of a row copied
  std::span<const int32_t> valid_counts;  // out [N] positions that are not masked
  // out [N, K] host slot of each miss, -1 zeroed, less: copied from hot row -2 - slot
  std::span<const int32_t> plan_slots;
  std::span<const int32_t> plan_hot_rows;  // out [N, K] its hot row, -1 skipped
  std::span<const int32_t> plan_counts;    // out [N] misses of the row

  std::span<const int32_t> owner;              // [R, H] slot owned by each hot slot, -1 none
  std::span<const int16_t> lru;                // [R, H] hot slots, oldest first
  std::span<const int32_t> backed_generation;  // [S] generation at which a row was backed up
  const StatsBlock* stats = nullptr;           // of this session; read it with ReadCounts

  // Hot row of the newest token of the `rank`-th row (0..rows_per_request-1) of `region` in a
  // step: where the worker writes that token before it is backed up. No range check.
  int32_t newest_hot_row(int32_t region, int32_t rank = 0) const {
    return region * shape.region_stride + shape.hot_size + rank;
  }
};

// One cache of one session.
struct CacheView {
  std::vector<GroupView> groups;

  std::span<const int32_t> block_table;       // [R, max_blocks_per_request], -1 none
  std::span<const int32_t> block_generation;  // [block_count]; raised when a block is assigned
  std::span<int32_t> sequence_lengths;        // in [R] positions that exist, -1 unknown

  std::span<int32_t> row_to_request;  // in [N] region of each row of the step, -1 padding
  std::span<int32_t> newest_slot;     // in [N] slot written this step, -1 none
  int32_t* num_real_rows = nullptr;   // in: rows at or past it are padding
  std::span<int32_t> progress;        // [2] of the two streams' order on a GPU; the library's own
};

}  // namespace kvtier::client
