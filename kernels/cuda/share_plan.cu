// Copies the rows of a plan; a slot that several regions hold or want crosses PCIe once.
//
// The directory names a hot row for a slot: a hint. It is a source if the row's region takes part
// in this call (what other calls do to theirs is not known here) and the row's owner is the slot.
// Owners are final, as the step is resolved before. Four kinds of launch follow:
//   0. Promote  a slot whose word names no source gets its second word, the last hot row that was
//             copied from one, if that is a source: it is younger, so it outlives the first
//   1. Claim  the first layer: an entry whose slot has no source makes its own hot row the one that
//             the directory names, and fills it from the host pool. Of several, one wins.
//   2. Fill   other layers: entries whose own hot row is named are filled from the host pool
//   3. Share  all layers: the other ones are copied inside the hot buffer, and become second
// No warp waits for another: a launch sees what the one before it did.
//
// Why a source holds its slot's bytes when it is read: if its row was not placed by this step, an
// earlier step, or a replay of it, has filled the row, and nobody writes it now. If it was, the
// directory names it, so its own entry has been filled by 1. or 2.; that holds for whatever the
// directory said before, as an entry only asks whether its own row is named. An entry that finds
// its row named in 3. has found it named in 1. or 2., too: after 1. nobody in this call names rows,
// and other calls only name their own. An entry that finds no source in 3. reads the host pool.
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/plan_entries.cuh"
#include "kernels/cuda/share_plan.h"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarpsPerBlock = kThreads / kWarpThreads;
// Copies inside the GPU are bound by latency, not by PCIe.
constexpr int32_t kSharingBlocksPerMultiprocessor = 2;
// A claim fails only when somebody else's has just succeeded, for the same slot.
constexpr int32_t kClaimTriesMax = 8;

enum class Stage : int32_t { kPromote, kClaim, kFill, kShare };

struct SharePlanArgs {
  CopyPlanArgs plan;
  Stage stage;
  bool moves_header;  // this launch moves the counts of the header
  bool counts;        // and this one counts the rows of its first layer
};

// In shared memory; the words of the regions follow.
struct BlockWords {
  int32_t rows_from_host, rows_shared;
};

constexpr int64_t SharedBytesFor(int32_t region_count) {
  return int64_t{sizeof(BlockWords)} + (int64_t{region_count} + 31) / 32 * 4;
}

// Where rows come from.
class Sources {
 public:
  // `regions`: a bit of shared memory for each.
  __device__ Sources(const RowDirectory& directory, uint32_t* regions)
      : d_(directory), regions_(regions) {}

  // Which regions take part. All threads; a barrier must follow.
  __device__ void FindRegions(int32_t row_end) {
    for (int32_t w = Thread(); w < (d_.region_count + 31) / 32; w += ThreadCount()) regions_[w] = 0;
    __syncthreads();
    for (int32_t row = Thread(); row < row_end; row += ThreadCount()) {
      const int32_t region = LoadRelaxed(d_.row_to_request + row);
      if (region < 0 || region >= d_.region_count) continue;
      atomicOr(regions_ + region / 32, 1u << region % 32);
    }
  }

  // The hot row that entry (slot, hot_row) gets its bytes from: its own if it fills that from the
  // host pool, kNone if nobody has them.
  __device__ int32_t Find(int32_t slot, int32_t hot_row) const {
    return SourceIn(LoadRelaxed(WordsOf(slot)), slot, hot_row);
  }

  // The same, but where nobody has them the entry takes over, if it can.
  __device__ int32_t FindOrClaim(int32_t slot, int32_t hot_row) const {
    int32_t* const word = WordsOf(slot);
    int32_t seen = LoadRelaxed(word);
    for (int32_t tries = 0; tries < kClaimTriesMax; ++tries) {
      const int32_t source = SourceIn(seen, slot, hot_row);
      if (source >= 0) return source;
      const int32_t before = atomicCAS(word, seen, hot_row + 1);
      if (before == seen) return hot_row;
      seen = before;
    }
    return kNone;
  }

  // Before anybody asks. By one thread an entry.
  __device__ void Promote(int32_t slot, int32_t hot_row) const {
    int32_t* const words = WordsOf(slot);
    const int32_t first = LoadRelaxed(words);
    if (SourceIn(first, slot, hot_row) >= 0) return;
    const int32_t second = LoadRelaxed(words + 1);
    if (SourceIn(second, slot, hot_row) >= 0) atomicCAS(words, first, second);
  }

  // For calls to come.
  __device__ void NameSecond(int32_t slot, int32_t hot_row) const {
    StoreRelaxed(WordsOf(slot) + 1, hot_row + 1);
  }

 private:
  __device__ int32_t* WordsOf(int32_t slot) const {
    return d_.hot_rows + int64_t{kDirectoryWords} * slot;
  }

  // What `word` of the directory is worth; any value may be there.
  __device__ int32_t SourceIn(int32_t word, int32_t slot, int32_t hot_row) const {
    if (word <= 0) return kNone;
    const int32_t named = word - 1;
    if (named == hot_row) return hot_row;
    const int32_t region = named / d_.region_stride;
    const int32_t hot_slot = named - region * d_.region_stride;
    if (region >= d_.region_count || hot_slot >= d_.hot_size) return kNone;
    if ((regions_[region / 32] >> region % 32 & 1) == 0) return kNone;
    const int32_t owner = LoadRelaxed(d_.owner + int64_t{region} * d_.hot_size + hot_slot);
    return owner == slot ? named : kNone;
  }

  const RowDirectory& d_;
  uint32_t* const regions_;
};

// Moves what the step left in the header. All lanes of one warp.
__device__ void MoveHeader(const CopyPlanArgs& a) {
  int64_t value = TakeCounts(a.header);
  if (Lane() == static_cast<int32_t>(Counter::kSteps)) value = min(value, int64_t{1});
  AddToStats(a.stats, value);
}

// The block's rows, at the end. All threads.
__device__ void CountRows(const CopyPlanArgs& a, BlockWords* block, int32_t from_host,
                          int32_t shared) {
  if (Lane() == 0 && from_host > 0) atomicAdd(&block->rows_from_host, from_host);
  if (Lane() == 0 && shared > 0) atomicAdd(&block->rows_shared, shared);
  __syncthreads();
  if (Warp() != 0) return;
  int64_t value = 0;
  if (Lane() == static_cast<int32_t>(Counter::kBytesCopied)) {
    value = block->rows_from_host * a.bytes_per_row;
  }
  if (a.directory.claims && Lane() == static_cast<int32_t>(Counter::kRowsShared)) {
    value = block->rows_shared;
  }
  if (__any_sync(kAllLanes, value != 0) != 0) AddToStats(a.stats, value);
}

// All entries, one a lane.
__device__ void PromoteAll(const CopyPlanArgs& a, const Sources& sources, int32_t row_end) {
  const int32_t warps = static_cast<int32_t>(gridDim.x) * WarpCount();
  const int32_t warp = Warp() * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  for (int32_t row = 0; row < row_end; row += kWarpThreads) {
    const PlanChunk chunk(a, row, row_end);
    for (int32_t start = warp * kWarpThreads; start < chunk.total();
         start += warps * kWarpThreads) {
      const int32_t count = min(chunk.total() - start, kWarpThreads);
      int64_t mine = 0;
      for (int32_t i = 0; i < count; ++i) {
        const int64_t at = chunk.At(start + i);
        if (Lane() == i) mine = at;
      }
      if (Lane() >= count) continue;
      const PlanEntry entry = LoadEntry(a, mine);
      if (entry.slot >= 0 && entry.hot_row >= 0) sources.Promote(entry.slot, entry.hot_row);
    }
  }
}

template <int32_t kLayersMax>
__global__ void __launch_bounds__(kThreads)
    SharePlanKernel(const __grid_constant__ SharePlanArgs args,
                    const __grid_constant__ LayerList<kLayersMax> list) {
  const CopyPlanArgs& a = args.plan;
  auto* const block = reinterpret_cast<BlockWords*>(SharedBytes());
  Sources sources(a.directory, reinterpret_cast<uint32_t*>(block + 1));
  const int32_t row_end = RealRowCount(a.num_real_rows, a.num_rows);
  if (Thread() == 0) *block = {0, 0};
  sources.FindRegions(row_end);
  __syncthreads();
  if (args.moves_header && blockIdx.x == 0 && Warp() == 0) MoveHeader(a);
  if (args.stage == Stage::kPromote) {
    PromoteAll(a, sources, row_end);
    return;
  }
  const bool shares = args.stage == Stage::kShare;
  int32_t from_host = 0, shared = 0;
  ForItems(a, list.count, row_end, static_cast<int32_t>(gridDim.x),
           [&](int32_t l, const PlanEntry& entry) {
             const LayerView& layer = list.layers[l];
             if (entry.slot < 0) {
               // A kept row is nobody's hot row: filled before others look for its slot.
               if (!shares) FillHotRow</*kKeeps=*/true>(layer, entry.slot, entry.hot_row);
               return;
             }
             // What one lane found holds for all.
             int32_t source = kNone;
             if (Lane() == 0) {
               source = args.stage == Stage::kClaim ? sources.FindOrClaim(entry.slot, entry.hot_row)
                                                    : sources.Find(entry.slot, entry.hot_row);
             }
             source = __shfl_sync(kAllLanes, source, 0);
             const bool fills = source == entry.hot_row;
             const bool is_elsewhere = source >= 0 && !fills;
             from_host += !is_elsewhere && l == 0;
             shared += is_elsewhere && l == 0;
             if (fills == shares) return;
             if (!shares || !is_elsewhere) {
               CopyRow(layer.hot, layer.layout, entry.hot_row, layer.host, layer.layout,
                       entry.slot);
             } else {
               CopyRow(layer.hot, layer.layout, entry.hot_row, layer.hot, layer.layout, source);
               if (a.directory.claims && l == 0 && Lane() == 0) {
                 sources.NameSecond(entry.slot, entry.hot_row);
               }
             }
           });
  if (args.counts) CountRows(a, block, from_host, shared);
}

// One stage of the copies of `layers`; launches of args.counts and args.moves_header do so once.
cudaError_t LaunchStage(SharePlanArgs args, const LayerView* layers, int32_t layer_count,
                        int64_t blocks_max, cudaStream_t stream) {
  const int64_t shared_bytes = SharedBytesFor(args.plan.directory.region_count);
  cudaError_t error = cudaSuccess;
  for (int32_t first = 0; error == cudaSuccess && (first < layer_count || first == 0);
       first += kLayersPerLaunch) {
    const int32_t count = std::min(layer_count - first, kLayersPerLaunch);
    const int64_t items = int64_t{args.plan.num_rows} * args.plan.top_k * count;
    const int64_t blocks =
        std::clamp<int64_t>((items + kWarpsPerBlock - 1) / kWarpsPerBlock, 1, blocks_max);
    error = WithLayersMax(count, [&](auto layers_max) {
      LayerList<layers_max()> list;
      list.count = count;
      std::copy_n(layers + first, count, list.layers);
      return Launch(SharePlanKernel<layers_max()>, blocks, kThreads, shared_bytes, stream, args,
                    list);
    });
    args.moves_header = args.counts = false;
  }
  return error;
}

}  // namespace

bool CanShareRows(const GroupShape& shape, const GroupState& state, const int32_t* row_to_request,
                  int32_t num_rows) {
  return state.directory != nullptr && state.owner != nullptr && row_to_request != nullptr &&
         num_rows > 1 && SharedBytesFor(shape.region_count) <= kSharedBytesDefault;
}

RowDirectory MakeRowDirectory(const GroupShape& shape, const GroupState& state,
                              const int32_t* row_to_request) {
  return {state.directory,     state.owner,    row_to_request, shape.region_count,
          shape.region_stride, shape.hot_size, false};
}

cudaError_t SharePlan(const CopyPlanArgs& plan, const LayerView* layers, int32_t layer_count,
                      cudaStream_t stream) {
  int32_t multiprocessors = 0;
  cudaError_t error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error != cudaSuccess) return error;
  const int64_t blocks_max = plan.blocks_max > 0 ? plan.blocks_max : multiprocessors;
  SharePlanArgs args = {plan, Stage::kFill, plan.header != nullptr, layer_count > 0};
  const int32_t claimed = plan.directory.claims ? std::min(layer_count, 1) : 0;
  if (claimed > 0) {
    SharePlanArgs promotes = args;
    promotes.stage = Stage::kPromote;
    promotes.moves_header = promotes.counts = false;
    error = LaunchStage(promotes, layers, claimed, blocks_max, stream);
    if (error != cudaSuccess) return error;
    args.stage = Stage::kClaim;
    error = LaunchStage(args, layers, claimed, blocks_max, stream);
    args.moves_header = args.counts = false;
  }
  if (error == cudaSuccess && (args.moves_header || layer_count > claimed)) {
    args.stage = Stage::kFill;
    error = LaunchStage(args, layers + claimed, layer_count - claimed, blocks_max, stream);
    args.moves_header = args.counts = false;
  }
  if (error != cudaSuccess || layer_count == 0) return error;
  args.stage = Stage::kShare;
  return LaunchStage(args, layers, layer_count, blocks_max * kSharingBlocksPerMultiprocessor,
                     stream);
}

}  // namespace kvtier::cuda
