// Rows of a call, and the bytes of rows, one after the other. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kept_rows.h"
#include "kernels/layout.h"
#include "kernels/params.h"

namespace kvtier::reference {

inline int32_t RealRows(const int32_t* num_real_rows, int32_t num_rows) {
  return num_real_rows == nullptr ? num_rows : std::clamp(*num_real_rows, 0, num_rows);
}

inline void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row, const uint8_t* from,
                    const RowLayout& from_layout, int32_t from_row) {
  std::memcpy(to + ValueOffset(to_layout, to_row), from + ValueOffset(from_layout, from_row),
              to_layout.value_bytes);
  if (to_layout.format != RowFormat::kSplitPage) return;
  std::memcpy(to + ScaleOffset(to_layout, to_row), from + ScaleOffset(from_layout, from_row),
              to_layout.scale_bytes);
}

inline void ZeroRow(uint8_t* to, const RowLayout& layout, int32_t row) {
  std::memset(to + ValueOffset(layout, row), 0, layout.value_bytes);
  if (layout.format != RowFormat::kSplitPage) return;
  std::memset(to + ScaleOffset(layout, row), 0, layout.scale_bytes);
}

// One entry of a plan on all layers. Returns the bytes that came from the host pool.
inline int64_t FillHotRow(const LayerView* layers, int32_t layer_count, int32_t source,
                          int32_t hot_row) {
  int64_t bytes = 0;
  for (int32_t l = 0; l < layer_count; ++l) {
    const RowLayout& layout = layers[l].layout;
    if (source == kNone) {
      ZeroRow(layers[l].hot, layout, hot_row);
    } else if (NamesHotRow(source)) {
      CopyRow(layers[l].hot, layout, hot_row, layers[l].hot, layout, HotRowIn(source));
    } else {
      CopyRow(layers[l].hot, layout, hot_row, layers[l].host, layout, source);
      bytes += RowBytes(layout);
    }
  }
  return bytes;
}

}  // namespace kvtier::reference
