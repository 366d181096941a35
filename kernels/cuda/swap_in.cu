// A swap-in: one block a batch row resolves the requests, then CopyPlan() moves the bytes.
//
// Two kernels, because the copies of one busy request are worth the whole GPU: resolving is bound
// by latency inside one multiprocessor, copying by PCIe.
#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/request_rows.cuh"
#include "kernels/cuda/resolver.cuh"

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

// A row without a request: nothing that the step before wrote may survive.
__device__ void MaskRow(const SwapInParams& p, const StepPlan& plan, int32_t row) {
  for (int32_t column = Thread(); column < p.shape.top_k; column += ThreadCount()) {
    const int64_t at = int64_t{row} * p.shape.top_k + column;
    p.hot_indices[at] = kNone;
    if (p.miss_mask != nullptr) p.miss_mask[at] = 0;
  }
  if (Thread() != 0) return;
  if (p.valid_counts != nullptr) p.valid_counts[row] = 0;
  plan.counts[row] = 0;
}

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
    if (bytes.small + bytes.large <= shared_max) return {sizes, 0};
  }
  const int64_t bytes_max = MakeTableBytes(MakeTableSizes(shape, rows_max, 0)).large;
  return {MakeTableSizes(shape, rows, 0), AlignUp(bytes_max)};
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

}  // namespace

int64_t WorkspaceBytes(const GroupShape& shape, int32_t num_rows) {
  return MakeWorkspaceLayout(shape, num_rows, PlaceTables(shape, num_rows).bytes_of_region).total;
}

cudaError_t SwapIn(const SwapInParams& params, void* workspace, cudaStream_t stream,
                   const LaunchOptions& options) {
  cudaError_t error = CheckSwapIn(params, workspace, options);
  if (error != cudaSuccess || params.num_rows == 0) return error;
  auto* const bytes = static_cast<uint8_t*>(workspace);
  const TablePlace place = PlaceTables(params.shape, params.num_rows);
  const WorkspaceLayout layout =
      MakeWorkspaceLayout(params.shape, params.num_rows, place.bytes_of_region);
  StepPlan plan = {params.plan.slots, params.plan.hot_rows, params.plan.counts, nullptr};
  if (plan.counts == nullptr) {
    plan = {reinterpret_cast<int32_t*>(bytes + layout.slots),
            reinterpret_cast<int32_t*>(bytes + layout.hot_rows),
            reinterpret_cast<int32_t*>(bytes + layout.counts),
            reinterpret_cast<int32_t*>(bytes + layout.units)};
  }
  error = Resolve(params, plan, layout, place, bytes, options.threads, stream);
  if (error != cudaSuccess) return error;
  CopyPlanArgs args = {};
  args.plan = plan;
  args.num_rows = params.num_rows;  // padding rows have empty plans
  args.top_k = params.shape.top_k;
  args.slot_count = params.shape.slot_count;
  args.hot_row_count = params.shape.region_count * params.shape.region_stride;
  args.header = reinterpret_cast<WorkspaceHeader*>(bytes);
  args.stats = params.stats;
  args.bytes_per_row = RowBytesOfAll(params.layers, params.layer_count);
  args.closes_call = true;
  args.blocks_max = options.copying_blocks;
  return CopyPlan(args, params.layers, params.layer_count, stream);
}

}  // namespace kvtier::cuda
