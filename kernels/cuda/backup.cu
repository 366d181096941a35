// Rows go from device memory to the host pool, their cached copies are dropped.
//
// A launch takes up to 8,192 rows and 256 layers. A block takes one row or several, on all layers,
// and waits for no other. Phases:
//   1. The generation of each row's block is noted, before any byte is written; beside that one
//   warp
//      a row finds which slot it has, from where, and whether a later row writes the same slot.
//   2. The row's team of warps copies it, each warp on its layers. Many rows have one warp each,
//      which walks through the layers side by side with all others: so the pool is written one
//      layer behind the other, few pages at a time.
//      A newest row goes to its kept row, too, if there is one (kept_rows.h).
//   3. The team drops the copies that the row's region has of the slot.
//   4. A fence, and the row is marked backed for the generation that was noted: a block that was
//      assigned again meanwhile stays unbacked.
// More rows are more launches on the stream, so the last row of all for a slot wins, too. Between
// the launches for more layers, the generation that the first one noted lies in backed_generation,
// as a number that equals no generation.
//
// Few rows of many layers go another way, on a device with clusters: backup_parts.cuh.
#include "kernels/cuda/backup_finish.cuh"
#include "kernels/cuda/backup_parts.cuh"
#include "kernels/cuda/backup_task.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/indexed_swap_in.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {
namespace {

// Each row is compared with those of its launch that follow it.
constexpr int32_t kRowsPerLaunch = 8192;
// Generations come over PCIe, behind all that has been written: many are asked for at once.
constexpr int32_t kRowsPerBlockMax = kWarpThreads;
constexpr int32_t kBlockWarpsMin = 8, kTeamWarpsMax = 16;
// Warps that write at the same time saturate PCIe from here on. (Larger blocks than the smallest
// pay only where each has a multiprocessor's share of PCIe to itself.)
constexpr int32_t kWarpsPerMultiprocessor = 8;

// In shared memory.
struct BlockState {
  RowTask tasks[kRowsPerBlockMax];  // of the block's rows
  Noted noted[kRowsPerBlockMax];
  int32_t counts[kCounterCount];
};

// Phase 1 for the block's rows, which begin at `first`.
__device__ void FindTasks(const BackupArgs& a, int32_t first, BlockState* block) {
  if (Thread() < kCounterCount) block->counts[Thread()] = 0;
  __syncthreads();
  const int32_t end = min(RealRowCount(a.num_real_rows, a.num_rows), a.first_row + kRowsPerLaunch);
  const bool notes_one = Warp() == WarpCount() - 1 && a.tracking.block_generation != nullptr &&
                         Lane() < a.rows_per_block && first + Lane() < end;
  const int32_t slot = notes_one ? LoadRelaxed(a.slots + first + Lane()) : kNone;
  int32_t generation = 0;
  if (slot >= 0 && slot < a.shape.slot_count) {
    generation = LoadRelaxed(a.tracking.block_generation + slot / a.shape.block_size);
  }
  BlockCounts counts(block->counts);
  if (Warp() % a.team_warps == 0) {
    for (int32_t i = Warp() / a.team_warps; i < a.rows_per_block; i += WarpCount() / a.team_warps) {
      RowTask task;
      if (first + i < end) task = FindTask<false>(a, first + i, end, &counts);
      if (Lane() == 0) block->tasks[i] = task;
    }
  }
  if (notes_one) block->noted[Lane()] = {slot, generation};
}

// Phase 2 for one row and layer. kKeeps: the source is the hot buffer, and its rows may have kept
// rows. All lanes of a warp.
template <bool kKeeps>
__device__ inline void CopyBackedRow(const RowTask& task, const BackupLayer& layer) {
  if constexpr (!kKeeps) {
    if (task.source < 0) return;
    CopyRow(layer.to, layer.to_layout, task.slot, layer.from, layer.from_layout, task.source);
  } else {
    auto* const hot = const_cast<uint8_t*>(layer.from);
    if (task.source >= 0) {
      CopyRow(layer.to, layer.to_layout, task.slot, layer.from, layer.from_layout, task.source, hot,
              task.kept);
    } else if (task.kept >= 0) {
      CopyRow(hot, layer.from_layout, task.kept, hot, layer.from_layout, task.newest);
    }
  }
}

template <int32_t kLayersMax, bool kKeeps>
__global__ void __launch_bounds__(kBlockThreadsMax)
    BackupKernel(const __grid_constant__ BackupArgs a,
                 const __grid_constant__ BackupLayers<kLayersMax> layers) {
  auto* const block = reinterpret_cast<BlockState*>(SharedBytes());
  const int32_t warp = Warp() % a.team_warps;  // of the team
  FindTasks(a, a.first_row + static_cast<int32_t>(blockIdx.x) * a.rows_per_block, block);
  __syncthreads();
  for (int32_t i = Warp() / a.team_warps; i < a.rows_per_block; i += WarpCount() / a.team_warps) {
    const RowTask task = block->tasks[i];
    for (int32_t l = warp; l < layers.count; l += a.team_warps) {
      CopyBackedRow<kKeeps>(task, layers.layers[l]);
    }
    if (!a.finishes_rows) continue;
    DropCopies(a, task, warp * kWarpThreads + Lane(), a.team_warps * kWarpThreads);
  }
  __syncthreads();
  if (Thread() < a.rows_per_block) {
    FinishRow(a, block->tasks[Thread()], block->noted[Thread()]);
  }
  if (a.finishes_rows && Warp() == WarpCount() - 1) AddCounts(a, block->counts);
}

// The layers of one launch.
template <int32_t kLayersMax>
BackupLayers<kLayersMax> LayersOf(const BackupParams& p, int32_t first, int32_t count) {
  BackupLayers<kLayersMax> list;
  list.count = count;
  for (int32_t l = 0; l < count; ++l) {
    const LayerView& layer = p.layers[first + l];
    list.layers[l] = {layer.hot, layer.host, layer.layout, layer.layout};
    if (p.sources == nullptr) continue;
    list.layers[l].from = p.sources[first + l];
    list.layers[l].from_layout = p.source_layouts[first + l];
  }
  return list;
}

// How `rows` of `layers` are spread. Returns the warps of a block.
int32_t SetTeams(int64_t rows, int32_t layers, int32_t multiprocessors, BackupArgs* args) {
  const auto is_useful = [=](int32_t warps) {
    const int32_t writing = warps <= kBlockWarpsMin ? kWarpsPerMultiprocessor : 1;
    return warps <= kTeamWarpsMax && warps < 2 * layers &&
           rows * warps <= int64_t{multiprocessors} * writing;
  };
  args->team_warps = 1;
  while (is_useful(2 * args->team_warps)) args->team_warps *= 2;
  const int32_t warps = std::max(args->team_warps, kBlockWarpsMin);
  args->rows_per_block = warps / args->team_warps;
  // Two blocks a multiprocessor hide each other's latencies.
  while (args->team_warps == 1 && args->rows_per_block < kRowsPerBlockMax &&
         rows >= int64_t{4} * args->rows_per_block * multiprocessors) {
    args->rows_per_block *= 2;
  }
  return warps;
}

// Whether each row is spread over blocks: where there are so few that half the multiprocessors have
// one each (more that write at the same time are slower), and more layers than a block has warps.
bool IsInParts(const BackupParams& p, int32_t multiprocessors) {
  int32_t major = 0;
  return int64_t{2} * kParts * p.num_rows <= multiprocessors && p.layer_count > kTeamWarpsMax &&
         p.layer_count <= kLayersPerLaunch &&
         std::all_of(p.layers, p.layers + p.layer_count,
                     [](const LayerView& layer) { return HeldRow::Fits(layer.layout); }) &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major) == cudaSuccess && major >= 9 &&
         IsBuiltForClusters();
}

cudaError_t BackupInParts(const BackupParams& p, BackupArgs args, cudaStream_t stream) {
  args.starts_rows = args.finishes_rows = true;
  const auto launch = [&](auto layers_max) {
    const auto kernel =
        args.keeps ? BackupPartsKernel<layers_max(), true> : BackupPartsKernel<layers_max(), false>;
    const LaunchShape shape = {.blocks = int64_t{kParts} * p.num_rows,
                               .threads = kPartThreads,
                               .shared_bytes = int64_t{sizeof(PartState)},
                               .cluster = kParts};
    return Launch(kernel, shape, stream, args, LayersOf<layers_max()>(p, 0, p.layer_count));
  };
  return p.layer_count <= 64 ? launch(std::integral_constant<int32_t, 64>())
                             : launch(std::integral_constant<int32_t, kLayersPerLaunch>());
}

// One launch for each kLayersPerLaunch layers, of the rows from args.first_row on.
cudaError_t BackupRows(const BackupParams& p, BackupArgs args, int32_t multiprocessors,
                       cudaStream_t stream) {
  const int64_t rows = std::min(p.num_rows - args.first_row, kRowsPerLaunch);
  cudaError_t error = cudaSuccess;
  for (int32_t first = 0; error == cudaSuccess && (first == 0 || first < p.layer_count);
       first += kLayersPerLaunch) {
    const int32_t count = std::min(p.layer_count - first, kLayersPerLaunch);
    args.starts_rows = first == 0;
    args.finishes_rows = first + kLayersPerLaunch >= p.layer_count;
    const int32_t warps = SetTeams(rows, count, multiprocessors, &args);
    const int64_t blocks = (rows + args.rows_per_block - 1) / args.rows_per_block;
    error = WithLayersMax(count, [&](auto layers_max) {
      const auto kernel =
          args.keeps ? BackupKernel<layers_max(), true> : BackupKernel<layers_max(), false>;
      return Launch(kernel, blocks, warps * kWarpThreads, int64_t{sizeof(BlockState)}, stream, args,
                    LayersOf<layers_max()>(p, first, count));
    });
  }
  return error;
}

}  // namespace

cudaError_t Backup(const BackupParams& p, cudaStream_t stream) {
  cudaError_t error = CheckBackup(p);
  if (error != cudaSuccess || p.num_rows == 0) return error;
  int32_t multiprocessors = 0;
  error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  BackupArgs args = {};
  args.shape = p.shape;
  args.owner = p.state.owner;
  args.directory = p.state.directory;
  args.kept = KeptOf(p.shape, p.state, 0);
  args.keeps = args.kept != nullptr && p.source_rows == nullptr && p.sources == nullptr;
  args.tracking = p.tracking;
  args.num_rows = p.num_rows;
  args.num_real_rows = p.num_real_rows;
  args.row_to_request = p.row_to_request;
  args.slots = p.slots;
  args.source_rows = p.source_rows;
  args.source_row_end =
      p.sources == nullptr ? p.shape.region_count * p.shape.region_stride : p.source_row_count;
  args.stats = p.stats;
  args.bytes_per_row = RowBytesOfAll(p.layers, p.layer_count);
  if (error == cudaSuccess && IsInParts(p, multiprocessors)) return BackupInParts(p, args, stream);
  for (; error == cudaSuccess && args.first_row < p.num_rows; args.first_row += kRowsPerLaunch) {
    error = BackupRows(p, args, multiprocessors, stream);
  }
  return error;
}

}  // namespace kvtier::cuda
