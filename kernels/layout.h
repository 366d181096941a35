// Where the bytes of a row are, and the arithmetic of slots and regions.
//
// The one header that the sequential reference, the CPU kernels and the CUDA
// kernels share. Standard library only; every function is usable on host and
// device. int32 counts slots and rows, int64 counts bytes: `slot * row_bytes`
// passes 2^31 at slot 3,273,604 of 656-byte rows.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KVTIER_HD __host__ __device__
#else
#define KVTIER_HD
#endif

namespace kvtier {

// Hot slots are int16 in the LRU order: 0..32767.
inline constexpr int32_t kHotSizeMax = 32768;
// One vector copy moves 16 bytes; scales of a split page move 4 at a time.
inline constexpr int32_t kRowAlignment = 16;
inline constexpr int32_t kScaleAlignment = 4;
// Regions start at multiples of this many rows.
inline constexpr int32_t kRegionAlignmentRows = 128;
// "No slot", "no row", "no request", "masked".
inline constexpr int32_t kNone = -1;

enum class RowFormat : int32_t {
  kContiguous = 0,  // row r at r * row_stride
  kSplitPage = 1,   // a page holds all its values, then all its scales, then padding
};

// Placement of rows in the host pool and, alike, in the hot buffer.
struct RowLayout {
  RowFormat format = RowFormat::kContiguous;
  int32_t value_bytes = 0;  // contiguous: the whole row; a multiple of 16
  int32_t scale_bytes = 0;  // split page only; a multiple of 4
  int32_t page_rows = 0;    // split page only; rows in one page
  int64_t row_stride = 0;   // contiguous only; >= value_bytes, a multiple of 16
  int64_t page_bytes = 0;   // split page only; a multiple of 16
};

// Bytes that one row carries (padding excluded).
KVTIER_HD constexpr int32_t RowBytes(const RowLayout& layout) {
  return layout.value_bytes + (layout.format == RowFormat::kSplitPage ? layout.scale_bytes : 0);
}

// Byte offset of the value bytes of `row` (row >= 0).
KVTIER_HD constexpr int64_t ValueOffset(const RowLayout& layout, int32_t row) {
  if (layout.format == RowFormat::kContiguous) return int64_t{row} * layout.row_stride;
  return int64_t{row / layout.page_rows} * layout.page_bytes +
         int64_t{row % layout.page_rows} * layout.value_bytes;
}

// Byte offset of the scale bytes of `row`; split page only.
KVTIER_HD constexpr int64_t ScaleOffset(const RowLayout& layout, int32_t row) {
  return int64_t{row / layout.page_rows} * layout.page_bytes +
         int64_t{layout.page_rows} * layout.value_bytes +
         int64_t{row % layout.page_rows} * layout.scale_bytes;
}

// Bytes that `row_count` rows take, whole pages for a split page layout.
KVTIER_HD constexpr int64_t StorageBytes(const RowLayout& layout, int64_t row_count) {
  if (layout.format == RowFormat::kContiguous) return row_count * layout.row_stride;
  return (row_count + layout.page_rows - 1) / layout.page_rows * layout.page_bytes;
}

// Rows between the starts of two regions: `hot_size` rows under LRU, then
// `reserved_rows` (ReservedRows() in params.h: one for each newest token of a
// request, and maybe one for each that is kept), then padding.
KVTIER_HD constexpr int32_t RegionStride(int32_t hot_size, int32_t reserved_rows) {
  return (hot_size + reserved_rows + kRegionAlignmentRows - 1) / kRegionAlignmentRows *
         kRegionAlignmentRows;
}

// The slot of `position`, or kNone: position < 0, past the table, at or past
// `sequence_length` (kNone = unknown), or on a block that is negative or so large
// that its slots don't fit int32.
// `blocks` int32 [max_blocks]: the block ids of one request.
KVTIER_HD constexpr int32_t ResolveSlot(const int32_t* blocks, int32_t max_blocks,
                                        int32_t block_size, int32_t sequence_length,
                                        int32_t position) {
  if (position < 0) return kNone;
  if (sequence_length >= 0 && position >= sequence_length) return kNone;
  const int32_t index = position / block_size;
  if (index >= max_blocks) return kNone;
  const int32_t block = blocks[index];
  if (block < 0) return kNone;
  const int64_t slot = int64_t{block} * block_size + position % block_size;
  return slot > INT32_MAX ? kNone : static_cast<int32_t>(slot);
}

}  // namespace kvtier
