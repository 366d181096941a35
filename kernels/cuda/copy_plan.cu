// Copies the rows of a plan, one warp a row and layer, spread over the whole GPU
// (plan_entries.cuh).
#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/plan_entries.cuh"
#include "kernels/cuda/share_plan.h"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarpsPerBlock = kThreads / kWarpThreads;
constexpr int64_t kSharedBytes = 16;  // of the block that counts

// Rows of this warp's chunks of the plan that are copied from the host pool, a part of the sum in
// each lane.
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
  constexpr auto kKept = static_cast<int32_t>(Counter::kRowsKept);
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
    copies = __shfl_sync(kAllLanes, static_cast<long long>(value), kRows) -
             __shfl_sync(kAllLanes, static_cast<long long>(value), kKept);
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
  ForItems(a, list.count, row_end, copying_blocks, [&](int32_t l, const PlanEntry& entry) {
    FillHotRow</*kKeeps=*/true>(list.layers[l], entry.slot, entry.hot_row);
  });
}

}  // namespace

cudaError_t CopyPlan(CopyPlanArgs args, const LayerView* layers, int32_t layer_count,
                     cudaStream_t stream) {
  if (args.directory.hot_rows != nullptr) return SharePlan(args, layers, layer_count, stream);
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
  if (CanShareRows(params.shape, params.state, params.row_to_request, params.num_rows)) {
    // The step's swap-in has decided who fills what.
    args.directory = MakeRowDirectory(params.shape, params.state, params.row_to_request);
    args.closes_call = false;
  }
  return CopyPlan(args, params.layers, params.layer_count, stream);
}

}  // namespace kvtier::cuda
