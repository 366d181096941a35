// One kernel for the whole step: a cluster of blocks a row. Each block resolves the request by
// itself (indexed_resolver.cuh), so all know every copy at the same time and begin to move bytes
// at once; the first one writes state and outputs meanwhile, and copies last.
//
// A few blocks saturate PCIe: the fewer rows a call has, the more blocks each of them gets.
#include <algorithm>

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/indexed_resolver.cuh"
#include "kernels/cuda/indexed_swap_in.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/mask_row.cuh"
#include "kernels/cuda/plan_entry.cuh"
#include "kernels/cuda/resolver.cuh"
#include "kernels/cuda/warp_rows.cuh"

namespace kvtier::cuda {
namespace {

static_assert(RowInFlight::kBytesMax == kRowBytesInFlightMax);

// The first row of a region is a request, others have no right to be there.
struct Role {
  int32_t region;    // kNone: padding
  bool is_rejected;  // a region out of range, or one that an earlier row has
  bool opens_call;   // no earlier row takes part; known to the first warp alone
};

// All threads, with a barrier; `word` in shared memory. Calls start(region) in thread 0 before it,
// if there is such a region.
template <typename Function>
__device__ inline Role FindRole(const SwapInParams& p, int32_t row, int32_t* word,
                                const Function& start) {
  const bool is_real = row < RealRowCount(p.num_real_rows, p.num_rows);
  Role role;
  role.region = is_real ? LoadRelaxed(p.row_to_request + row) : kNone;
  const bool is_there = role.region >= 0 && role.region < p.shape.region_count;
  if (Thread() == 0 && is_there) start(role.region);
  bool same = false, any = false;
  if (Warp() == 0) {
#pragma unroll 1
    for (int32_t other = Lane(); other < row; other += kWarpThreads) {
      const int32_t earlier = LoadRelaxed(p.row_to_request + other);
      same |= earlier == role.region;
      any |= earlier >= 0 && earlier < p.shape.region_count;
    }
    any = __any_sync(kAllLanes, any) != 0;
  }
  // What one thread read holds for all, also if somebody writes there meanwhile.
  if (Thread() == 0) *word = role.region;
  const bool is_taken = __syncthreads_or(same) != 0;
  role.region = *word;
  role.is_rejected =
      role.region != kNone && (role.region < 0 || role.region >= p.shape.region_count || is_taken);
  role.opens_call = !any;
  return role;
}

// The step of a request whose state is damaged, by all threads of the block that writes. Counts
// are where the caller has them, `counts` [kCounterCount].
template <int32_t kLayersMax>
__device__ __noinline__ void ResolveGenerally(const IndexedSwapInArgs& a,
                                              const LayerList<kLayersMax>& list, int32_t row,
                                              int32_t region, int32_t* counts) {
  __syncthreads();
  uint8_t* const small = SharedBytes();
  const Tables tables = CutTables(a.general_sizes, small, small + a.general_small_bytes);
  if (Thread() == 0) {
    tables.rows[0] = row;
    RegionIndex::Forget(a.p.state.index + int64_t{region} * RegionIndexLength(a.p.shape.hot_size));
  }
  if (Thread() < kCounterCount) tables.counts[Thread()] = 0;
  __syncthreads();
  Resolver(a.p, a.plan, tables, region, 1, a.general_sizes.spread, BlockCounts(tables.counts))
      .Run();
  __syncthreads();
  const int32_t count = Thread() < kCounterCount ? tables.counts[Thread()] : 0;
  __syncthreads();
  if (Thread() < kCounterCount) counts[Thread()] = count;
  // The plan may lie where other processes write.
  const int64_t start = PlanStart(a.plan.units == nullptr ? row : region, a.p.shape.top_k);
  const int32_t entries = min(max(LoadRelaxed(a.plan.counts + row), 0), a.p.shape.top_k);
  for (int32_t l = 0; l < list.count; ++l) {
    for (int32_t m = Warp(); m < entries; m += WarpCount()) {
      const PlanEntry entry = LoadEntry(a.plan, start + m, a.p.shape.slot_count,
                                        a.p.shape.region_count * a.p.shape.region_stride);
      if (entry.hot_row >= 0) FillHotRow<true>(list.layers[l], entry.slot, entry.hot_row);
    }
  }
  __syncthreads();
}

// What lane c adds to counter c for a step that counted `value` there. One warp.
template <bool kAged>
__device__ inline int64_t CountOfStep(const IndexedSwapInArgs& a, int64_t value, bool opens_call) {
  constexpr auto kRows = static_cast<int32_t>(Counter::kRowsCopied);
  constexpr auto kKept = static_cast<int32_t>(Counter::kRowsKept);
  int64_t rows = __shfl_sync(kAllLanes, static_cast<long long>(value), kRows);
  if constexpr (kAged) rows -= __shfl_sync(kAllLanes, static_cast<long long>(value), kKept);
  if (Lane() == static_cast<int32_t>(Counter::kSteps)) return opens_call ? 1 : 0;
  if (Lane() == static_cast<int32_t>(Counter::kBytesCopied)) return rows * a.bytes_per_row;
  return value;
}

// Outputs of a row that takes no part.
__device__ inline void RefuseRow(const IndexedSwapInArgs& a, int32_t row, bool is_rejected) {
  MaskRow(a.p, a.plan, row);
  const bool counts = is_rejected && Lane() == static_cast<int32_t>(Counter::kRejectedRows);
  if (Warp() == 0) AddToStats(a.p.stats, counts ? 1 : 0);
}

// Resolves the misses of a step and copies them. All blocks of the row.
template <bool kAged, typename ResolverType, int32_t kLayersMax>
__device__ inline void ResolveAndCopy(const IndexedSwapInArgs& a, const LayerList<kLayersMax>& list,
                                      int32_t turn, bool opens_call, WarpRows* rows,
                                      ResolverType* resolver) {
  const LayerView& leader = list.layers[0];
  if (turn < a.early_blocks) StartRows<kAged>(a, leader, turn, *resolver, rows);
  resolver->Resolve();
  if (resolver->keeps_index() && !resolver->writes()) resolver->KeepIndex();
  const bool is_shared = a.early_blocks > 0 && !resolver->repeats();
  if (!is_shared) {  // what has started is of no use: misses have other numbers
    if (rows->second != kNone) WaitForCopies();
    rows->has_started = false;
    rows->first = rows->second = kNone;
    rows->next = turn * WarpCount() + Warp();
  }
  const auto place_of = [&](int32_t m) {
    return leader.hot + ValueOffset(leader.layout, resolver->hot_row(m));
  };
  if (rows->has_started) rows->bytes.Store(place_of(rows->first), leader.layout.value_bytes);
  if (rows->second != kNone) {
    StoreStagedRow(place_of(rows->second), resolver->Stage(a.stage_bytes),
                   leader.layout.value_bytes / 16);
  }
  if (resolver->writes()) {
    resolver->Place();
    if (Warp() == 0) AddToStats(a.p.stats, CountOfStep<kAged>(a, resolver->Count(), opens_call));
  }
  if (a.sorts) resolver->SortByAddress();
  if (turn >= a.copying_blocks) return;
  const int32_t warps = WarpCount() * a.copying_blocks;
  const auto copy = [&](const LayerView& layer, int32_t m) {
    FillHotRow<kAged>(layer, resolver->KeptOr(resolver->source(m)), resolver->hot_row(m));
  };
  if (!is_shared) {
    for (int32_t l = 0; l < list.count; ++l) {
      for (int32_t i = rows->next; i < resolver->misses(); i += warps) {
        copy(list.layers[l], a.sorts ? resolver->address(i) : i);
      }
    }
    return;
  }
  for (int32_t l = rows->has_started ? 1 : 0; rows->first != kNone && l < list.count; ++l) {
    copy(list.layers[l], rows->first);
  }
  if (turn < a.early_blocks ? rows->next >= rows->rest : !ReachesLateBlocks(a, *resolver)) {
    return;
  }
  const Shares shares(resolver->MissingOfLane(), a.early_blocks);
  if (turn >= a.early_blocks) TakeTurn(a, shares, turn, rows);
  for (int32_t l = 0; l < list.count; ++l) {
    for (int32_t u = rows->next; u < rows->rest; u += warps) copy(list.layers[l], shares.Rest(u));
  }
}

template <int32_t kLayersMax, int32_t kTopK, int32_t kHotSize, int32_t kThreads, bool kAged>
__global__ void __launch_bounds__(kBlockThreadsMax)
    IndexedSwapInKernel(const __grid_constant__ IndexedSwapInArgs a,
                        const __grid_constant__ LayerList<kLayersMax> list) {
  // Constants where the sizes are.
  const IndexedTables tables = kTopK > 0 ? MakeIndexedTables(kTopK, kHotSize, kAged) : a.tables;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t row = block >> a.cluster_shift;
  const int32_t rank = block & ((1 << a.cluster_shift) - 1);
  const bool writes = rank == 0;
  IndexedResolver<kTopK, kHotSize, kThreads, kAged> resolver(
      a.p, a.plan, a.writes_plan, a.block_shift, tables, row, 1 << a.cluster_shift);
  resolver.Clear();
  if (a.lets_next_start) LetNextKernelStart();
  WaitForPreviousKernel();
  resolver.ReadPositions();
  const Role role = FindRole(a.p, row, Shared<int32_t>(tables.words),
                             [&](int32_t region) { resolver.StartBulk(region); });
  if (role.region == kNone || role.is_rejected) {
    const bool has_started = role.region >= 0 && role.region < a.p.shape.region_count;
    if (has_started) resolver.LetBulkArrive();
    if (writes) RefuseRow(a, row, role.is_rejected);
    resolver.Leave();
    return;
  }
  resolver.ReadState(role.region);
  // The block that writes comes last.
  const int32_t turn = writes ? (1 << a.cluster_shift) - 1 : rank - 1;
  WarpRows rows;
  const auto start = [&](int32_t slot) {
    const LayerView& leader = list.layers[0];
    rows.has_started = slot < a.p.shape.slot_count;
    if (!rows.has_started) return;
    rows.bytes.Load(ValuesAt<kAged>(leader, resolver.KeptOr(slot)), leader.layout.value_bytes);
  };
  const bool is_sound = resolver.FindMissing(turn < a.early_blocks ? turn : INT32_MAX, start);
  if (!is_sound) {
    resolver.Leave();
    if (!writes) return;
    auto* const counts = Shared<int32_t>(tables.counts);
    ResolveGenerally(a, list, row, role.region, counts);
    if (Warp() != 0) return;
    const int32_t count = Lane() < kCounterCount ? counts[Lane()] : 0;
    AddToStats(a.p.stats, CountOfStep<kAged>(a, count, role.opens_call));
    return;
  }
  if (resolver.missing() > 0) {
    ResolveAndCopy<kAged>(a, list, turn, role.opens_call, &rows, &resolver);
  } else {  // the same without what would have to be remembered for copies
    if (!a.lets_next_start) LetNextKernelStart();
    resolver.Resolve();
    if (writes) {
      resolver.Place();
    } else if (resolver.keeps_index()) {
      resolver.KeepIndex();
    }
    if (writes && Warp() == 0) {
      AddToStats(a.p.stats, CountOfStep<kAged>(a, resolver.Count(), role.opens_call));
    }
  }
  resolver.Leave();
}

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

bool CanUseIndex(const SwapInParams& params, const TableSizes& general_sizes, int32_t shared_max,
                 int64_t* shared_bytes) {
  const GroupShape& shape = params.shape;
  if (params.state.index == nullptr || RegionIndexLength(shape.hot_size) == 0 ||
      shape.rows_per_request != 1 || shape.top_k > shape.hot_size) {
    return false;
  }
  const TableBytes general = MakeTableBytes(general_sizes);
  const bool has_scores = shape.policy == EvictionPolicy::kAged;
  *shared_bytes =
      std::max<int64_t>(MakeIndexedTables(shape.top_k, shape.hot_size, has_scores).total,
                        general.small + general.large);
  return *shared_bytes <= shared_max;
}

bool IsBuiltForClusters() {
  static const bool is_built = [] {
    const auto kernel = IndexedSwapInKernel<kLayersInKernel, 0, 0, 0, false>;
    cudaFuncAttributes attributes = {};
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    return error == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return is_built;
}

cudaError_t IndexedSwapIn(const IndexedSwapInArgs& args, const LayerView* layers,
                          int32_t layer_count, int32_t threads, int64_t shared_bytes,
                          cudaStream_t stream) {
  // The sizes of DeepSeek-V3.2 and GLM-5.
  constexpr int32_t kTopK = 2048, kHotSize = 4096;
  const GroupState& state = args.p.state;
  const bool is_common = args.p.shape.top_k == kTopK && args.p.shape.hot_size == kHotSize &&
                         threads == kBlockThreadsMax && layer_count <= 1 &&
                         IsAligned(state.owner) && IsAligned(state.lru) && IsAligned(state.score);
  const LaunchShape shape = {int64_t{args.p.num_rows} << args.cluster_shift, threads, shared_bytes,
                             1 << args.cluster_shift, args.overlaps};
  const auto launch = [&](auto kernel, auto layers_max) {
    LayerList<layers_max()> list;
    list.count = layer_count;
    std::copy_n(layers, layer_count, list.layers);
    return Launch(kernel, shape, stream, args, list);
  };
  const auto launch_for = [&](auto aged) {
    if (is_common) {
      return launch(IndexedSwapInKernel<1, kTopK, kHotSize, kBlockThreadsMax, aged()>,
                    std::integral_constant<int32_t, 1>());
    }
    return launch(IndexedSwapInKernel<kLayersInKernel, 0, 0, 0, aged()>,
                  std::integral_constant<int32_t, kLayersInKernel>());
  };
  return args.p.shape.policy == EvictionPolicy::kAged ? launch_for(std::true_type())
                                                      : launch_for(std::false_type());
}

}  // namespace kvtier::cuda
