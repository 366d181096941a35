#include "kernels/cpu/copy_rows.h"

#include <cstring>

#include "kernels/kept_rows.h"

namespace kvtier::cpu {
namespace {

// One thread has copied fewer bytes than these before another would have woken up.
constexpr int64_t kBytesOfThreadMin = 256 << 10;

void ZeroRow(uint8_t* to, const RowLayout& layout, int32_t row) {
  std::memset(to + ValueOffset(layout, row), 0, layout.value_bytes);
  if (layout.format != RowFormat::kSplitPage) return;
  std::memset(to + ScaleOffset(layout, row), 0, layout.scale_bytes);
}

void CopyList(const LayerView& layer, const RowCopy* copies, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (copies[i].slot == kNone) {
      ZeroRow(layer.hot, layer.layout, copies[i].hot_row);
    } else if (NamesHotRow(copies[i].slot)) {
      CopyRow(layer.hot, layer.layout, copies[i].hot_row, layer.hot, layer.layout,
              HotRowIn(copies[i].slot));
    } else {
      CopyRow(layer.hot, layer.layout, copies[i].hot_row, layer.host, layer.layout, copies[i].slot);
    }
  }
}

}  // namespace

void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row, const uint8_t* from,
             const RowLayout& from_layout, int32_t from_row) {
  // libc's memcpy, though the size is one of few: it picks AVX where the machine has it, while an
  // inlined copy of constant size could only use what every x86-64 has. Prefetching the rows that
  // follow was measured (1 to 8 ahead, cold rows of a large pool): no difference.
  std::memcpy(to + ValueOffset(to_layout, to_row), from + ValueOffset(from_layout, from_row),
              to_layout.value_bytes);
  if (to_layout.format != RowFormat::kSplitPage) return;
  std::memcpy(to + ScaleOffset(to_layout, to_row), from + ScaleOffset(from_layout, from_row),
              to_layout.scale_bytes);
}

int32_t PartsPerItem(int64_t items, const Executor& executor) {
  const int32_t threads = executor.thread_count();
  return threads == 1 || items >= 4 * int64_t{threads} ? 1 : threads;
}

int64_t CopyLists(const LayerView* layers, int32_t layer_count, const CallScratch& call,
                  Executor& executor) {
  int64_t entries = 0, rows = 0, row_bytes = 0;
  for (int32_t list = 0; list < call.list_count; ++list) {
    const RowCopy* copies = call.copies.data() + call.copy_starts[list];
    entries += call.copy_counts[list];
    for (int32_t i = 0; i < call.copy_counts[list]; ++i) rows += copies[i].slot >= 0;
  }
  for (int32_t l = 0; l < layer_count; ++l) row_bytes += RowBytes(layers[l].layout);
  const int64_t items = entries == 0 ? 0 : int64_t{call.list_count} * layer_count;
  const bool is_short = entries * row_bytes < kBytesOfThreadMin;
  const int32_t parts = is_short ? 1 : PartsPerItem(items, executor);
  const auto copy = [&](int32_t, int64_t index) {
    const int64_t item = index / parts, part = index % parts;
    const auto list = static_cast<int32_t>(item / layer_count);
    const int64_t count = call.copy_counts[list];
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    CopyList(layers[item % layer_count], call.copies.data() + call.copy_starts[list] + begin,
             end - begin);
  };
  if (is_short) {
    for (int64_t item = 0; item < items; ++item) copy(0, item);
  } else {
    executor.ParallelFor(items * parts, copy);
  }
  return rows * row_bytes;
}

}  // namespace kvtier::cpu
