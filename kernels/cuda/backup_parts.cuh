// A backup of few rows, on a device with clusters: each row on several blocks.
//
// What few rows wait for are latencies: the slots, a block's generation over PCIe, and rows in a
// page of their own each, which a multiprocessor translates one after the other. So the layers of a
// row are spread over the blocks of a cluster, a warp has one or two, and what needs no generation
// is done while that is on its way. It is asked for once a row: of reads of one line of host memory
// each waits for the one before, nearly a microsecond.
//   1. The first block finds the row's task and asks for its generation.
//   2. All of them take the task from there. Each warp asks for the bytes of its first layer, which
//      stay in registers, and drops its share of the region's copies of the slot.
//   3. When the first block has noted the generation, the bytes are stored.
//   4. A fence of each block; then the first block marks the row.
#pragma once

#include <cstring>

#include "kernels/cuda/backup_finish.cuh"
#include "kernels/cuda/backup_task.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {

// Blocks of a row: two translate too slowly, eight are no faster.
inline constexpr int32_t kParts = 4;
inline constexpr int32_t kPartThreads = 512;

// The bytes of a row, in the registers of a warp.
class HeldRow {
  static constexpr int32_t kVectors = 3;  // 1152-byte rows

 public:
  static constexpr bool Fits(const RowLayout& layout) {
    return layout.value_bytes <= kVectors * kWarpThreads * 16 &&
           (layout.format != RowFormat::kSplitPage || layout.scale_bytes <= kWarpThreads * 4);
  }

  // All lanes, here and below.
  __device__ void Load(const uint8_t* from, const RowLayout& layout, int32_t row) {
    const auto* const values = reinterpret_cast<const uint4*>(from + ValueOffset(layout, row));
#pragma unroll
    for (int32_t k = 0; k < kVectors; ++k) {
      const int32_t i = k * kWarpThreads + Lane();
      if (i < layout.value_bytes / 16) vectors_[k] = values[i];
    }
    if (!HasScale(layout)) return;
    scale_ = reinterpret_cast<const uint32_t*>(from + ScaleOffset(layout, row))[Lane()];
  }
  __device__ void Store(uint8_t* to, const RowLayout& layout, int32_t row) const {
    auto* const values = reinterpret_cast<uint4*>(to + ValueOffset(layout, row));
#pragma unroll
    for (int32_t k = 0; k < kVectors; ++k) {
      const int32_t i = k * kWarpThreads + Lane();
      if (i < layout.value_bytes / 16) values[i] = vectors_[k];
    }
    if (!HasScale(layout)) return;
    reinterpret_cast<uint32_t*>(to + ScaleOffset(layout, row))[Lane()] = scale_;
  }

 private:
  __device__ static bool HasScale(const RowLayout& layout) {
    return layout.format == RowFormat::kSplitPage && Lane() < layout.scale_bytes / 4;
  }

  uint4 vectors_[kVectors];
  uint32_t scale_;
};

// One layer of a row on its way. A row that a later one overwrites may go to its kept row alone.
template <bool kKeeps>
class HeldLayer {
 public:
  __device__ void Load(const BackupLayer& layer, const RowTask& task) {
    const int32_t row = kKeeps && task.source < 0 ? task.newest : task.source;
    if (row >= 0) row_.Load(layer.from, layer.from_layout, row);
  }
  __device__ void Store(const BackupLayer& layer, const RowTask& task) const {
    if (task.source >= 0) row_.Store(layer.to, layer.to_layout, task.slot);
    if (kKeeps && task.kept >= 0) {
      row_.Store(const_cast<uint8_t*>(layer.from), layer.from_layout, task.kept);
    }
  }

 private:
  HeldRow row_;
};

// In shared memory.
struct PartState {
  RowTask task;
  Noted noted;
  int32_t counts[kCounterCount];
};

// The first block's, behind a barrier of the cluster.
__device__ inline RowTask TaskOfFirstBlock(const PartState* block) {
  static_assert(sizeof(RowTask) % sizeof(int32_t) == 0);
  int32_t words[sizeof(RowTask) / sizeof(int32_t)];
#pragma unroll
  for (uint32_t i = 0; i < sizeof(RowTask) / sizeof(int32_t); ++i) {
    words[i] = LoadFromFirstBlock(reinterpret_cast<const int32_t*>(&block->task) + i);
  }
  RowTask task;
  memcpy(&task, words, sizeof(task));
  return task;
}

// Parameters are memory, too: those of a layer are fetched while others are waited for.
__device__ inline void FetchParameters(const BackupLayer& layer) {
#if defined(__CUDA_ARCH__)
  asm volatile("" ::"l"(layer.from), "l"(layer.to));
#else
  (void)layer;
#endif
}

// At the barrier of the cluster. `tells`: others read what this warp has written. All lanes.
__device__ inline void Arrive(bool tells) {
  if (tells) {
    ArriveAtCluster();
  } else {
    ArriveFencedAtCluster();  // there is nothing to fence
  }
}

// What the row's block has now. All lanes.
__device__ inline Noted NoteGeneration(const BackupArgs& a, int32_t row) {
  Noted noted = {kNone, 0};
  if (a.tracking.block_generation == nullptr) return noted;
  noted.slot = LoadRelaxed(a.slots + row);
  if (noted.slot >= 0 && noted.slot < a.shape.slot_count) {
    noted.generation = LoadRelaxed(a.tracking.block_generation + noted.slot / a.shape.block_size);
  }
  return noted;
}

template <int32_t kLayersMax, bool kKeeps>
__global__ void __launch_bounds__(kPartThreads, 1)
    BackupPartsKernel(const __grid_constant__ BackupArgs a,
                      const __grid_constant__ BackupLayers<kLayersMax> layers) {
  auto* const block = reinterpret_cast<PartState*>(SharedBytes());
  const int32_t part = static_cast<int32_t>(blockIdx.x) % kParts;
  const int32_t row = static_cast<int32_t>(blockIdx.x) / kParts;
  const int32_t first_layer = Warp() * kParts + part;
  const BackupLayer& layer = layers.layers[min(first_layer, layers.count - 1)];
  // 1.
  const bool finds = part == 0 && Warp() == 0, notes = part == 0 && Warp() == 1;
  Noted noted = {kNone, 0};
  if (notes) noted = NoteGeneration(a, row);
  if (finds) {
    if (Lane() < kCounterCount) block->counts[Lane()] = 0;
    __syncwarp();
    BlockCounts counts(block->counts);
    const RowTask task = FindTask<true>(a, row, RealRowCount(a.num_real_rows, a.num_rows), &counts);
    if (Lane() == 0) block->task = task;
  }
  Arrive(finds);
  FetchParameters(layer);
  WaitForCluster();
  // 2.
  const RowTask task = TaskOfFirstBlock(block);
  HeldLayer<kKeeps> held;
  if (first_layer < layers.count) held.Load(layer, task);
  DropCopies(a, task, part * ThreadCount() + Thread(), kParts * ThreadCount());
  if (finds) AddCounts(a, block->counts);
  if (notes && Lane() == 0) block->noted = noted;
  Arrive(notes);
  WaitForCluster();
  // 3.
  if (first_layer < layers.count) held.Store(layer, task);
#pragma unroll 1
  for (int32_t l = first_layer + kParts * WarpCount(); l < layers.count;
       l += kParts * WarpCount()) {
    held.Load(layers.layers[l], task);
    held.Store(layers.layers[l], task);
  }
  __syncthreads();
  // 4. Warps that have left count as arrived.
  if (Warp() != 0) return;
  if (Lane() == 0) ReleaseToSystem();
  __syncwarp();
  ArriveFencedAtCluster();
  if (part != 0) return;
  WaitForCluster();
  if (Lane() == 0) FinishRow(a, task, block->noted);
}

}  // namespace kvtier::cuda
