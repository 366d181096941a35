// Copies the rows of a plan, one warp a row and layer, spread over the whole GPU.
//
// Work is compact: entry e of layer l is item l * entries + e, and warp w takes items w, w + warps,
// ... A few busy requests therefore use every multiprocessor, and layers follow each other, so that
// the part of the host pool touched at a time stays small (address translation). The number of
// entries is known on the device only; the grid is a fixed one that fits the GPU.
//
// Costs before the first byte moves: one load of 32 rows' counts, one of an entry.
#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/plan_entry.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarpsPerBlock = kThreads / kWarpThreads;
constexpr int64_t kSharedBytes = 16;  // of the block that counts

// The plan of 32 batch rows, a row each lane. All lanes make and use it together.
class PlanChunk {
 public:
  __device__ PlanChunk(const CopyPlanArgs& a, int32_t first_row, int32_t row_end) {
    const int32_t row = first_row + Lane();
    if (row < row_end) {
      entries_ = min(max(LoadRelaxed(a.plan.counts + row), 0), a.top_k);
      const int32_t place =
          a.plan.units == nullptr || entries_ == 0 ? row : LoadRelaxed(a.plan.units + row);
      start_ = PlanStart(place, a.top_k);
    }
    end_ = InclusiveWarpSum(entries_);
    total_ = __shfl_sync(kAllLanes, end_, kWarpThreads - 1);
  }

  __device__ int32_t total() const { return total_; }

  // Where entry `index` (in [0, total)) lies in the plan.
  __device__ int64_t At(int32_t index) const {
    const int32_t lane = __popc(__ballot_sync(kAllLanes, end_ <= index));
    const int32_t before = __shfl_sync(kAllLanes, end_ - entries_, lane);
    return __shfl_sync(kAllLanes, static_cast<long long>(start_), lane) + index - before;
  }

 private:
  int32_t entries_ = 0;
  int64_t start_ = 0;
  int32_t end_;  // sum of entries up to this lane
  int32_t total_;
};

__device__ int64_t CountEntries(const CopyPlanArgs& a, int32_t row_end) {
  int64_t total = 0;
  for (int32_t row = 0; row < row_end; row += kWarpThreads) {
    total += PlanChunk(a, row, row_end).total();
  }
  return total;
}

__device__ PlanEntry LoadEntry(const CopyPlanArgs& a, int64_t at) {
  return LoadEntry(a.plan, at, a.slot_count, a.hot_row_count);
}

// The warp's share of one layer: of the entries in order, every `stride`-th from `first` on.
__device__ void CopyLayer(const CopyPlanArgs& a, const LayerView& layer, int32_t row_end,
                          int64_t first, int64_t stride) {
  int64_t before = 0;
  int64_t next = first;
  for (int32_t row = 0; row < row_end; row += kWarpThreads) {
    const PlanChunk chunk(a, row, row_end);
    for (; next < before + chunk.total(); next += stride) {
      const PlanEntry entry = LoadEntry(a, chunk.At(static_cast<int32_t>(next - before)));
      if (entry.hot_row >= 0) FillHotRow(layer, entry.slot, entry.hot_row);
    }
    before += chunk.total();
  }
}

// Rows of this warp's chunks of the plan that are copied, a part of the sum in each lane.
__device__ int32_t CountCopies(const CopyPlanArgs& a, int32_t row_end) {
  int32_t copies = 0;
  for (int32_t row = Warp(); row < row_end; row += WarpCount()) {
    const int64_t start = PlanStart(row, a.top_k);
    const int32_t entries = min(LoadRelaxed(a.plan.counts + row), a.top_k);
    for (int32_t i = Lane(); i < entries; i += kWarpThreads) {
      const PlanEntry entry = LoadEntry(a, start + i);
      copies += entry.hot_row >= 0 && entry.slot >= 0;
    }
  }
  return copies;
}

// Moves the call's counts to the statistics. All threads of one block.
__device__ void CloseCall(const CopyPlanArgs& a, int32_t row_end, unsigned* shared_copies) {
  constexpr auto kSteps = static_cast<int32_t>(Counter::kSteps);
  constexpr auto kRows = static_cast<int32_t>(Counter::kRowsCopied);
  constexpr auto kBytes = static_cast<int32_t>(Counter::kBytesCopied);
  if (a.header == nullptr) {  // a replay counts for itself
    if (Thread() == 0) *shared_copies = 0;
    __syncthreads();
    const int32_t copies = CountCopies(a, row_end);
    if (copies > 0) atomicAdd(shared_copies, static_cast<unsigned>(copies));
    __syncthreads();
  }
  if (Warp() != 0) return;
  int64_t value = 0, copies = 0;
  if (a.header != nullptr) {
    value = TakeCounts(a.header);
    copies = __shfl_sync(kAllLanes, static_cast<long long>(value), kRows);
  } else {
    copies = *shared_copies;
  }
  if (Lane() == kSteps) value = min(value, int64_t{1});  // it was one a request
  if (Lane() == kBytes) value = copies * a.bytes_per_row;
  AddToStats(a.stats, value);
}

// All blocks copy; the last one of a launch that closes its call only counts.
template <int32_t kLayersMax>
__global__ void __launch_bounds__(kThreads)
    CopyPlanKernel(const __grid_constant__ CopyPlanArgs a,
                   const __grid_constant__ LayerList<kLayersMax> list) {
  const int32_t row_end = RealRowCount(a.num_real_rows, a.num_rows);
  const auto copying_blocks = static_cast<int32_t>(gridDim.x) - (a.closes_call ? 1 : 0);
  if (static_cast<int32_t>(blockIdx.x) == copying_blocks) {
    CloseCall(a, row_end, reinterpret_cast<unsigned*>(SharedBytes()));
    return;
  }
  const int64_t warps = int64_t{copying_blocks} * kWarpsPerBlock;
  // Neighbouring entries go to different multiprocessors.
  const int64_t warp = int64_t{Warp()} * copying_blocks + blockIdx.x;
  const int64_t entries = CountEntries(a, row_end);
  if (entries == 0) return;
  for (int32_t l = 0; l < list.count; ++l) {
    // The first item of this layer that is the warp's: items of earlier layers count along.
    const int64_t offset = (l * entries) % warps;
    const int64_t first = warp >= offset ? warp - offset : warp - offset + warps;
    CopyLayer(a, list.layers[l], row_end, first, warps);
  }
}

}  // namespace

cudaError_t CopyPlan(CopyPlanArgs args, const LayerView* layers, int32_t layer_count,
                     cudaStream_t stream) {
  int32_t multiprocessors = 0;
  cudaError_t error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  const int64_t blocks_max = args.blocks_max > 0 ? args.blocks_max : multiprocessors;
  const bool counts = args.closes_call;
  for (int32_t first = 0; error == cudaSuccess && (first < layer_count || first == 0);
       first += kLayersPerLaunch) {
    const int32_t count = std::min(layer_count - first, kLayersPerLaunch);
    args.closes_call = counts && first + kLayersPerLaunch >= layer_count;
    const int64_t items = int64_t{args.num_rows} * args.top_k * count;
    const int64_t blocks =
        std::min<int64_t>((items + kWarpsPerBlock - 1) / kWarpsPerBlock, blocks_max) +
        (args.closes_call ? 1 : 0);
    if (blocks == 0) continue;
    error = WithLayersMax(count, [&](auto layers_max) {
      LayerList<layers_max()> list;
      list.count = count;
      std::copy_n(layers + first, count, list.layers);
      return Launch(CopyPlanKernel<layers_max()>, blocks, kThreads, kSharedBytes, stream, args,
                    list);
    });
  }
  return error;
}

cudaError_t ReplayPlan(const ReplayPlanParams& params, cudaStream_t stream,
                       const LaunchOptions& options) {
  const cudaError_t error = CheckReplayPlan(params, options);
  if (error != cudaSuccess || params.num_rows == 0) return error;
  CopyPlanArgs args = {};
  args.plan = {params.plan.slots, params.plan.hot_rows, params.plan.counts, nullptr};
  args.num_rows = params.num_rows;
  args.num_real_rows = params.num_real_rows;
  args.top_k = params.shape.top_k;
  args.slot_count = params.shape.slot_count;
  args.hot_row_count = params.shape.region_count * params.shape.region_stride;
  args.stats = params.stats;
  args.bytes_per_row = RowBytesOfAll(params.layers, params.layer_count);
  args.closes_call = params.stats != nullptr;
  args.blocks_max = options.copying_blocks;
  return CopyPlan(args, params.layers, params.layer_count, stream);
}

}  // namespace kvtier::cuda
