// The bytes of one row, moved by one warp.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {

// Loads that a lane issues before its first store: they are in flight together, which is what a
// transfer over PCIe needs. 656-byte rows take two, 1152-byte rows three.
inline constexpr int32_t kLoadsInFlight = 4;

// `count` 16-byte vectors, to a second place as well unless that is null.
__device__ inline void CopyVectors(uint8_t* to, const uint8_t* from, int32_t count,
                                   uint8_t* second = nullptr) {
  auto* const destination = reinterpret_cast<uint4*>(to);
  auto* const also = reinterpret_cast<uint4*>(second);
  const auto* const source = reinterpret_cast<const uint4*>(from);
  for (int32_t first = Lane(); first < count; first += kLoadsInFlight * kWarpThreads) {
    uint4 vectors[kLoadsInFlight];
#pragma unroll
    for (int32_t k = 0; k < kLoadsInFlight; ++k) {
      const int32_t i = first + k * kWarpThreads;
      if (i < count) vectors[k] = source[i];
    }
#pragma unroll
    for (int32_t k = 0; k < kLoadsInFlight; ++k) {
      const int32_t i = first + k * kWarpThreads;
      if (i < count) destination[i] = vectors[k];
      if (i < count && also != nullptr) also[i] = vectors[k];
    }
  }
}

// `count` 4-byte words, likewise: scales are too small for more.
__device__ inline void CopyWords(uint8_t* to, const uint8_t* from, int32_t count,
                                 uint8_t* second = nullptr) {
  auto* const destination = reinterpret_cast<uint32_t*>(to);
  const auto* const source = reinterpret_cast<const uint32_t*>(from);
  auto* const also = reinterpret_cast<uint32_t*>(second);
  for (int32_t i = Lane(); i < count; i += kWarpThreads) {
    const uint32_t word = source[i];
    destination[i] = word;
    if (also != nullptr) also[i] = word;
  }
}

// Both layouts have the same format, value_bytes and scale_bytes. Row `second_row` of `second`,
// which has the layout of `from`, gets the bytes, too, unless it is null. All lanes.
__device__ inline void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row,
                               const uint8_t* from, const RowLayout& from_layout, int32_t from_row,
                               uint8_t* second = nullptr, int32_t second_row = kNone) {
  const bool is_twice = second != nullptr;
  CopyVectors(to + ValueOffset(to_layout, to_row), from + ValueOffset(from_layout, from_row),
              to_layout.value_bytes / 16,
              is_twice ? second + ValueOffset(from_layout, second_row) : nullptr);
  if (to_layout.format != RowFormat::kSplitPage) return;
  CopyWords(to + ScaleOffset(to_layout, to_row), from + ScaleOffset(from_layout, from_row),
            to_layout.scale_bytes / 4,
            is_twice ? second + ScaleOffset(from_layout, second_row) : nullptr);
}

// All lanes.
__device__ inline void ZeroRow(uint8_t* to, const RowLayout& layout, int32_t row) {
  auto* const values = reinterpret_cast<uint4*>(to + ValueOffset(layout, row));
  for (int32_t i = Lane(); i < layout.value_bytes / 16; i += kWarpThreads) {
    values[i] = make_uint4(0, 0, 0, 0);
  }
  if (layout.format != RowFormat::kSplitPage) return;
  auto* const scales = reinterpret_cast<uint32_t*>(to + ScaleOffset(layout, row));
  for (int32_t i = Lane(); i < layout.scale_bytes / 4; i += kWarpThreads) scales[i] = 0;
}

// The start of a copy whose destination is not known yet: the bytes of a row of up to kBytesMax, in
// the registers of a warp.
class RowInFlight {
  static constexpr int32_t kVectors = 2;

 public:
  static constexpr int32_t kBytesMax = kVectors * kWarpThreads * 16;

  __device__ void Load(const uint8_t* from, int32_t bytes) {
    const auto* const source = reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int32_t k = 0; k < kVectors; ++k) {
      const int32_t i = k * kWarpThreads + Lane();
      if (i < bytes / 16) vectors_[k] = source[i];
    }
  }
  __device__ void Store(uint8_t* to, int32_t bytes) const {
    auto* const destination = reinterpret_cast<uint4*>(to);
#pragma unroll
    for (int32_t k = 0; k < kVectors; ++k) {
      const int32_t i = k * kWarpThreads + Lane();
      if (i < bytes / 16) destination[i] = vectors_[k];
    }
  }

 private:
  uint4 vectors_[kVectors];
};

// The same by way of shared memory: starts to copy `count` vectors there. All lanes.
__device__ inline void StageRow(uint8_t* stage, const uint8_t* from, int32_t count) {
  for (int32_t i = Lane(); i < count; i += kWarpThreads)
    CopyAsync<16>(stage + 16 * i, from + 16 * i);
}
// And to where they belong; each lane has waited for its own.
__device__ inline void StoreStagedRow(uint8_t* to, const uint8_t* stage, int32_t count) {
  WaitForCopies();
  for (int32_t i = Lane(); i < count; i += kWarpThreads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(stage)[i];
  }
}

// A hot row of a layer from where the plan's `source` says: a host row, kNone for zeros or, only if
// kKeeps, a kept row. All lanes.
template <bool kKeeps>
__device__ inline void FillHotRow(const LayerView& layer, int32_t source, int32_t hot_row) {
  const bool is_kept = kKeeps && NamesHotRow(source);
  if (source < 0 && !is_kept) {
    ZeroRow(layer.hot, layer.layout, hot_row);
  } else {
    CopyRow(layer.hot, layer.layout, hot_row, is_kept ? layer.hot : layer.host, layer.layout,
            is_kept ? HotRowIn(source) : source);
  }
}

}  // namespace kvtier::cuda
