// A swap-in: which kernels a call takes.
//
// Where requests have one row each and regions an index, one kernel does it (indexed_swap_in.h); on
// a device without clusters it leaves the copies of few rows to CopyPlan(), since one block a row
// does not saturate PCIe. Everything else goes the general way: one block a batch row resolves
// (resolver.cuh), then CopyPlan() moves the bytes on the whole GPU.
#include <algorithm>
#include <bit>

#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/indexed_swap_in.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/mask_row.cuh"
#include "kernels/cuda/region_index.cuh"
#include "kernels/cuda/request_rows.cuh"
#include "kernels/cuda/resolver.cuh"
#include "kernels/cuda/share_plan.h"

namespace kvtier::cuda {
namespace {

// A slot table twice as large as it must be is at most a third full. More costs more to clear.
constexpr int32_t kSpreadMax = 1;

struct ResolveArgs {
  SwapInParams p;  // its layers are not for this kernel
  StepPlan plan;
  TableSizes sizes;
  WorkspaceHeader* header;
  uint8_t* tables;           // in the workspace, where shared memory is too small
  int64_t tables_of_region;  // bytes
  int64_t small_bytes;       // TableBytes
};

// Block b: batch row b. Cost at top_k 2048 and hot_size 4096: two passes over the positions, two
// over the order, twelve barriers, no global memory but inputs, outputs and state.
template <bool kTablesInShared>
__global__ void __launch_bounds__(kBlockThreadsMax)
    ResolveKernel(const __grid_constant__ ResolveArgs a) {
  uint8_t* const small = SharedBytes();
  Tables tables = CutTables(a.sizes, small, small + a.small_bytes);
  BlockCounts counts(tables.counts);
  for (int32_t c = Thread(); c < kCounterCount; c += ThreadCount()) tables.counts[c] = 0;

  const auto row = static_cast<int32_t>(blockIdx.x);
  int32_t region = kNone;
  const RowRole role = FindRole(a.p, row, tables.word, &region);
  if (role == RowRole::kLater) return;
  if (role == RowRole::kFirst) {
    if constexpr (!kTablesInShared) {
      tables = CutTables(a.sizes, small, a.tables + int64_t{region} * a.tables_of_region);
    }
    __syncthreads();
    if (Warp() == 0) {
      const int32_t found = GatherRows(a.p, row, region, a.sizes.rows, tables.rows);
      if (Lane() == 0) *tables.word = found;
    }
    __syncthreads();
    const int32_t row_count = *tables.word;
    if (Thread() == 0 && a.p.state.index != nullptr) {
      RegionIndex::Forget(a.p.state.index +
                          int64_t{region} * RegionIndexLength(a.p.shape.hot_size));
    }
    Resolver(a.p, a.plan, tables, region, row_count, a.sizes.spread, counts).Run();
  } else {
    MaskRow(a.p, a.plan, row);
    if (role == RowRole::kRejected && Thread() == 0) counts.Add(Counter::kRejectedRows, 1);
  }
  __syncthreads();
  counts.Flush(a.header);
}

// Rows of a request that CheckSwapIn() lets a call have.
int32_t RowsOfRequestMax(const GroupShape& shape) {
  const int32_t rows = std::min(shape.rows_per_request, kRequestRowsMax);
  return std::max(1, std::min(rows, kHotSizeMax / std::max(1, shape.top_k)));
}

// How large the tables of a call are, and where they lie.
struct TablePlace {
  TableSizes sizes;
  int64_t bytes_of_region;  // in the workspace; 0: in shared memory
  int32_t shared_max;       // of a block on the current device
};

// The largest slot table for which the shared memory of a block on the current device suffices: in
// a sparse one searches end sooner. Without a device: as if none did.
TablePlace PlaceTables(const GroupShape& shape, int32_t num_rows) {
  const int32_t rows_max = RowsOfRequestMax(shape);
  const int32_t rows = std::clamp(num_rows, 1, rows_max);
  int32_t shared_max = 0;
  if (DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_max) != cudaSuccess) {
    shared_max = 0;
  }
  for (int32_t spread = kSpreadMax; spread >= 0; --spread) {
    const TableSizes sizes = MakeTableSizes(shape, rows, spread);
    const TableBytes bytes = MakeTableBytes(sizes);
    if (bytes.small + bytes.large <= shared_max) return {sizes, 0, shared_max};
  }
  const int64_t bytes_max = MakeTableBytes(MakeTableSizes(shape, rows_max, 0)).large;
  return {MakeTableSizes(shape, rows, 0), AlignUp(bytes_max), shared_max};
}

cudaError_t Resolve(const SwapInParams& params, const StepPlan& plan, const WorkspaceLayout& layout,
                    const TablePlace& place, uint8_t* workspace, int32_t threads,
                    cudaStream_t stream) {
  ResolveArgs args;
  args.p = params;
  args.plan = plan;
  args.sizes = place.sizes;
  args.header = reinterpret_cast<WorkspaceHeader*>(workspace);
  args.tables = workspace + layout.tables;
  args.tables_of_region = place.bytes_of_region;
  const TableBytes bytes = MakeTableBytes(args.sizes);
  args.small_bytes = bytes.small;
  if (place.bytes_of_region > 0) {
    return Launch(ResolveKernel<false>, params.num_rows, threads, bytes.small, stream, args);
  }
  return Launch(ResolveKernel<true>, params.num_rows, threads, bytes.small + bytes.large, stream,
                args);
}

// Up to so many rows a step is bound by latency: kernels overlap at their ends, and blocks share a
// row. With more it is bound by PCIe, and by the address translation of the host pool: each row's
// block then should stay on the multiprocessor that it had in the step before, which knows its
// pages, so that kernels overlap only where nothing is missing; and rows are copied in the order of
// their addresses.
constexpr int32_t kFewRows = 32;

// log2 of the blocks that share a row's work, where the device has clusters: as many as run at the
// same time. (Clusters of eight find place on an H200 fourteen times.)
int32_t ClusterShiftFor(int32_t num_rows) {
  if (num_rows <= 8) return 3;
  return num_rows <= 16 ? 2 : 1;
}

// Up to so many rows, and of one layer, warps may begin with two at once. Beyond, others have time
// for the second, and it would only crowd PCIe.
constexpr int32_t kStagedRows = 2;

// A row that is read before its generation is looked up might be one that was not backed up yet.
bool CanStartEarly(const SwapInParams& p) {
  const RowLayout& layout = p.layers[0].layout;
  return p.tracking.backed_generation == nullptr && layout.format == RowFormat::kContiguous &&
         layout.value_bytes <= kRowBytesInFlightMax;
}

bool HasClusters() {
  int32_t major = 0;
  return DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major) == cudaSuccess && major >= 9 &&
         IsBuiltForClusters();
}

// How an indexed swap-in is spread over the device, and how many layers its kernel copies: none
// where rows are shared, as no owner is final before its end.
void Spread(const SwapInParams& params, const LaunchOptions& options, bool shares,
            IndexedSwapInArgs* args, int32_t* layers) {
  const bool is_small = params.num_rows <= kFewRows;
  const bool has_clusters = HasClusters();
  args->overlaps = has_clusters;
  args->lets_next_start = is_small;
  if (options.cluster > 0) {
    args->cluster_shift = std::countr_zero(static_cast<uint32_t>(options.cluster));
  } else if (is_small && has_clusters && !shares) {
    args->cluster_shift = ClusterShiftFor(params.num_rows);
  }
  const bool copies = !shares && (options.cluster > 0 || has_clusters || !is_small);
  *layers = copies ? std::min(params.layer_count, kLayersInKernel) : 0;
  args->sorts = !is_small && copies && args->cluster_shift == 0;
  // The block that writes comes last, and has no turn where the others are many; before it the one
  // that keeps the index, which has no time to begin early either.
  const int32_t blocks = 1 << args->cluster_shift;
  args->copying_blocks = blocks > kBlocksMany ? blocks - 1 : blocks;
  const bool starts_early = !args->sorts && *layers > 0 && CanStartEarly(params);
  if (starts_early) args->early_blocks = std::max(blocks - (blocks >= kBlocksMany ? 2 : 1), 1);
}

// Where a call's plan lies.
StepPlan PlanOf(const SwapInParams& params, const WorkspaceLayout& layout, uint8_t* workspace) {
  if (params.plan.counts != nullptr) {
    return {params.plan.slots, params.plan.hot_rows, params.plan.counts, nullptr};
  }
  return {reinterpret_cast<int32_t*>(workspace + layout.slots),
          reinterpret_cast<int32_t*>(workspace + layout.hot_rows),
          reinterpret_cast<int32_t*>(workspace + layout.counts),
          reinterpret_cast<int32_t*>(workspace + layout.units)};
}

// A call that can use the index; `copies` is for the layers that its kernel leaves.
cudaError_t SwapInByIndex(const SwapInParams& params, const StepPlan& plan,
                          const TableSizes& general_sizes, int64_t shared_bytes,
                          const CopyPlanArgs& copies, cudaStream_t stream,
                          const LaunchOptions& options) {
  IndexedSwapInArgs args = {};
  int32_t layers = 0;
  const bool shares = copies.directory.hot_rows != nullptr;
  Spread(params, options, shares, &args, &layers);
  args.p = params;
  args.plan = plan;
  args.writes_plan = params.plan.counts != nullptr || params.layer_count > layers;
  args.tables = MakeIndexedTables(params.shape.top_k, params.shape.hot_size,
                                  params.shape.policy == EvictionPolicy::kAged);
  if (args.early_blocks > 0 && layers == 1 && params.num_rows <= kStagedRows) {
    const int32_t bytes = params.layers[0].layout.value_bytes;
    const bool has_room = bytes * (options.threads / kWarpThreads) <= args.tables.stage_bytes;
    args.stage_bytes = has_room ? bytes : 0;
  }
  args.general_sizes = general_sizes;
  args.general_small_bytes = MakeTableBytes(general_sizes).small;
  args.bytes_per_row = shares ? 0 : copies.bytes_per_row;  // SharePlan() counts
  const auto block_size = static_cast<uint32_t>(params.shape.block_size);
  args.block_shift = std::has_single_bit(block_size) ? std::countr_zero(block_size) : kNone;
  const cudaError_t error =
      IndexedSwapIn(args, params.layers, layers, options.threads, shared_bytes, stream);
  if (error != cudaSuccess || params.layer_count == layers) return error;
  return CopyPlan(copies, params.layers + layers, params.layer_count - layers, stream);
}

}  // namespace

int64_t WorkspaceBytes(const GroupShape& shape, int32_t num_rows) {
  return MakeWorkspaceLayout(shape, num_rows, PlaceTables(shape, num_rows).bytes_of_region).total;
}

cudaError_t SwapIn(const SwapInParams& params, void* workspace, cudaStream_t stream,
                   const LaunchOptions& options) {
  cudaError_t error = CheckSwapIn(params, workspace, options);
  if (error != cudaSuccess || params.num_rows == 0) return error;
  if (options.cluster > 1 && !HasClusters()) return cudaErrorInvalidValue;
  auto* const bytes = static_cast<uint8_t*>(workspace);
  const TablePlace place = PlaceTables(params.shape, params.num_rows);
  const WorkspaceLayout layout =
      MakeWorkspaceLayout(params.shape, params.num_rows, place.bytes_of_region);
  CopyPlanArgs args = {};
  args.plan = PlanOf(params, layout, bytes);
  args.num_rows = params.num_rows;  // padding rows have empty plans
  args.top_k = params.shape.top_k;
  args.slot_count = params.shape.slot_count;
  args.hot_row_count = params.shape.region_count * params.shape.region_stride;
  args.bytes_per_row = RowBytesOfAll(params.layers, params.layer_count);
  args.blocks_max = options.copying_blocks;
  // Then all owners are final before the first byte moves.
  const bool shares =
      CanShareRows(params.shape, params.state, params.row_to_request, params.num_rows);
  if (shares) {
    args.directory = MakeRowDirectory(params.shape, params.state, params.row_to_request);
    args.directory.claims = true;
    args.num_real_rows = params.num_real_rows;  // regions of padding rows are not in the call
    args.stats = params.stats;
  }
  int64_t shared_bytes = 0;
  const TableSizes general_sizes = MakeTableSizes(params.shape, 1, 0);
  if (CanUseIndex(params, general_sizes, place.shared_max, &shared_bytes)) {
    return SwapInByIndex(params, args.plan, general_sizes, shared_bytes, args, stream, options);
  }
  error = Resolve(params, args.plan, layout, place, bytes, options.threads, stream);
  if (error != cudaSuccess) return error;
  args.header = reinterpret_cast<WorkspaceHeader*>(bytes);
  args.stats = params.stats;
  args.closes_call = true;
  return CopyPlan(args, params.layers, params.layer_count, stream);
}

}  // namespace kvtier::cuda
