// Rows go from device memory to the host pool, their cached copies are dropped.
//
// A launch takes up to 1,024 batch rows. Phases:
//   1. Every block lists the rows by itself (28 KiB of shared memory): which slot, from where, and
//      which of several rows for one slot is the last. No block waits for another.
//   2. One warp a row and layer copies; it first notes the generation of the slot's block.
//   3. One warp 1,024 owners of a row's region drops copies of the slot.
//   4. The block that finishes last marks the rows backed, for the smallest generation that
//      a copy began under: a block that was assigned again meanwhile stays unbacked.
// More rows are more launches on the stream, so the last row of all for a slot wins, too.
#include "kernels/cuda/check.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hash.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/stats.cuh"

namespace kvtier::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarpsPerBlock = kThreads / kWarpThreads;
constexpr int32_t kBlocksPerMultiprocessor = 2;
constexpr int32_t kOwnersPerWarp = 1024;
constexpr int32_t kEntries = SlotTable::EntriesFor(kBackupRowsMax);

struct BackupArgs {
  GroupShape shape;
  int32_t* owner;
  int32_t* directory;  // null: none
  RowTracking tracking;
  int32_t num_rows;
  const int32_t* num_real_rows;
  const int32_t* row_to_request;
  const int32_t* slots;
  const int32_t* source_rows;
  int32_t source_row_end;
  int32_t first_row;  // of this launch
  WorkspaceHeader* header;
  StatsBlock* stats;
  int64_t bytes_per_row;  // over all layers of the call
  bool finishes_rows;     // this launch copies the last layers of its rows
  bool closes_call;       // and its rows are the last
};

struct BackupLayer {
  const uint8_t* from;
  uint8_t* to;
  RowLayout from_layout, to_layout;
};

template <int32_t kLayersMax>
struct BackupLayers {
  int32_t count;
  BackupLayer layers[kLayersMax];
};

// In shared memory.
struct RowList {
  int32_t slot[kBackupRowsMax];    // kNone: the row doesn't count
  int32_t source[kBackupRowsMax];  // kNone: a later row writes the slot
  int32_t region[kBackupRowsMax];  // where copies are dropped, kNone: nowhere
  int32_t keys[kEntries];
  int32_t last[kEntries];  // the last row that writes the slot of this entry
  int32_t counts[kCounterCount];
};

// Rows in [0, row) that name `region`.
__device__ int32_t RankOf(const BackupArgs& a, int32_t row, int32_t region) {
  int32_t rank = 0;
  for (int32_t other = 0; other < row; ++other) rank += a.row_to_request[other] == region;
  return rank;
}

// Phase 1 for one row.
__device__ void ListRow(const BackupArgs& a, int32_t i, RowList* list, SlotTable* table,
                        BlockCounts* counts) {
  list->slot[i] = list->source[i] = list->region[i] = kNone;
  const int32_t row = a.first_row + i;
  const int32_t region = a.row_to_request == nullptr ? kNone : a.row_to_request[row];
  int32_t source = kNone;
  bool is_rejected = region < kNone || region >= a.shape.region_count;
  if (a.source_rows != nullptr) {
    source = a.source_rows[row];
  } else if (region == kNone) {
    return;
  } else if (!is_rejected) {
    const int32_t rank = RankOf(a, row, region);
    is_rejected = rank >= a.shape.rows_per_request;
    source = region * a.shape.region_stride + a.shape.hot_size + rank;
  }
  if (is_rejected) {
    counts->Add(Counter::kRejectedRows, 1);
    return;
  }
  const int32_t slot = a.slots[row];
  if (slot < 0 || slot >= a.shape.slot_count || source < 0 || source >= a.source_row_end) return;
  counts->Add(Counter::kBackedUpRows, 1);
  list->slot[i] = slot;
  list->source[i] = source;
  list->region[i] = region;
  atomicMax(list->last + table->Insert(slot), i);
}

__device__ void ListRows(const BackupArgs& a, int32_t rows, RowList* list) {
  SlotTable table(list->keys, kEntries);
  BlockCounts counts(list->counts);
  for (int32_t e = Thread(); e < kEntries; e += ThreadCount()) {
    table.Clear(e);
    list->last[e] = kNone;
  }
  for (int32_t c = Thread(); c < kCounterCount; c += ThreadCount()) list->counts[c] = 0;
  __syncthreads();
  for (int32_t i = Thread(); i < rows; i += ThreadCount()) ListRow(a, i, list, &table, &counts);
  __syncthreads();
  for (int32_t i = Thread(); i < rows; i += ThreadCount()) {
    if (list->slot[i] >= 0 && list->last[table.Find(list->slot[i])] != i) list->source[i] = kNone;
  }
  __syncthreads();
}

// Phase 2: row `i` on one layer. All lanes.
__device__ void CopyToHost(const BackupArgs& a, const BackupLayer& layer, const RowList& list,
                           int32_t i) {
  const int32_t slot = list.slot[i], source = list.source[i];
  if (source < 0) return;
  if (a.tracking.block_generation != nullptr && Lane() == 0) {
    const int32_t generation = LoadRelaxed(a.tracking.block_generation + slot / a.shape.block_size);
    atomicMax(a.header->begun_under + i,
              static_cast<uint32_t>(INT32_MAX) - static_cast<uint32_t>(generation));
  }
  CopyRow(layer.to, layer.to_layout, slot, layer.from, layer.from_layout, source);
}

// Phase 3: a part of the owners of row `i`'s region. All lanes.
__device__ void DropCopies(const BackupArgs& a, const RowList& list, int32_t i, int32_t part) {
  const int32_t slot = list.slot[i], region = list.region[i];
  if (slot < 0 || region < 0) return;
  int32_t* const owner = a.owner + int64_t{region} * a.shape.hot_size;
  const int32_t end = min((part + 1) * kOwnersPerWarp, a.shape.hot_size);
  for (int32_t h = part * kOwnersPerWarp + Lane(); h < end; h += kWarpThreads) {
    // What another process gave the hot slot meanwhile stays.
    if (LoadRelaxed(owner + h) == slot) atomicCAS(owner + h, slot, kNone);
  }
}

// Phase 4. All threads of the last block.
__device__ void FinishRows(const BackupArgs& a, const RowList& list, int32_t rows) {
  for (int32_t i = Thread(); i < rows; i += ThreadCount()) {
    const uint32_t begun_under = LoadRelaxed(a.header->begun_under + i);
    StoreRelaxed(a.header->begun_under + i, 0u);
    if (list.source[i] < 0) continue;
    const int32_t slot = list.slot[i];
    // Other regions may keep copies of what was there before: nobody shall find them.
    for (int32_t w = 0; a.directory != nullptr && w < kDirectoryWords; ++w) {
      StoreRelaxed(a.directory + int64_t{kDirectoryWords} * slot + w, 0);
    }
    if (a.tracking.block_generation == nullptr) continue;
    const int32_t generation =
        begun_under == 0 ? LoadRelaxed(a.tracking.block_generation + slot / a.shape.block_size)
                         : static_cast<int32_t>(static_cast<uint32_t>(INT32_MAX) - begun_under);
    // IsLastBlock() has put a fence between the bytes and this.
    StoreRelaxed(a.tracking.backed_generation + slot, generation);
  }
  BlockCounts(const_cast<int32_t*>(list.counts)).Flush(a.header);
  __syncthreads();
  if (!a.closes_call || Warp() != 0) return;
  int64_t value = TakeCounts(a.header);
  const int64_t backed_up = __shfl_sync(kAllLanes, static_cast<long long>(value),
                                        static_cast<int32_t>(Counter::kBackedUpRows));
  if (Lane() == static_cast<int32_t>(Counter::kBackedUpBytes)) {
    value = backed_up * a.bytes_per_row;
  }
  AddToStats(a.stats, value);
}

template <int32_t kLayersMax>
__global__ void __launch_bounds__(kThreads)
    BackupKernel(const __grid_constant__ BackupArgs a,
                 const __grid_constant__ BackupLayers<kLayersMax> layers) {
  auto* const list = reinterpret_cast<RowList*>(SharedBytes());
  const int32_t real_rows = RealRowCount(a.num_real_rows, a.num_rows);
  const int32_t rows = min(max(real_rows - a.first_row, 0), kBackupRowsMax);
  ListRows(a, rows, list);
  const int32_t warps = static_cast<int32_t>(gridDim.x) * kWarpsPerBlock;
  const int32_t warp = Warp() * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  const int32_t copies = rows * layers.count;
  for (int32_t item = warp; item < copies; item += warps) {
    CopyToHost(a, layers.layers[item / rows], *list, item % rows);
  }
  if (a.finishes_rows && a.row_to_request != nullptr) {
    const int32_t parts = (a.shape.hot_size + kOwnersPerWarp - 1) / kOwnersPerWarp;
    for (int32_t item = warp; item < rows * parts; item += warps) {
      DropCopies(a, *list, item / parts, item % parts);
    }
  }
  if (IsLastBlock(a.header) && a.finishes_rows) FinishRows(a, *list, rows);
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

// One launch for each kLayersPerLaunch layers, of the rows from args.first_row on.
cudaError_t BackupRows(const BackupParams& p, BackupArgs args, int32_t multiprocessors,
                       cudaStream_t stream) {
  const bool closes_call = args.closes_call;
  const int64_t rows = std::min(p.num_rows - args.first_row, kBackupRowsMax);
  const int64_t owner_parts = (p.shape.hot_size + kOwnersPerWarp - 1) / kOwnersPerWarp;
  cudaError_t error = cudaSuccess;
  for (int32_t first = 0; error == cudaSuccess && (first == 0 || first < p.layer_count);
       first += kLayersPerLaunch) {
    const int32_t count = std::min(p.layer_count - first, kLayersPerLaunch);
    args.finishes_rows = first + kLayersPerLaunch >= p.layer_count;
    args.closes_call = closes_call && args.finishes_rows;
    const int64_t items = rows * std::max<int64_t>(count, owner_parts);
    const int64_t blocks = std::min((items + kWarpsPerBlock - 1) / kWarpsPerBlock,
                                    int64_t{multiprocessors} * kBlocksPerMultiprocessor);
    error = WithLayersMax(count, [&](auto layers_max) {
      return Launch(BackupKernel<layers_max()>, blocks, kThreads, int64_t{sizeof(RowList)}, stream,
                    args, LayersOf<layers_max()>(p, first, count));
    });
  }
  return error;
}

}  // namespace

cudaError_t Backup(const BackupParams& p, void* workspace, cudaStream_t stream) {
  cudaError_t error = CheckBackup(p, workspace);
  if (error != cudaSuccess || p.num_rows == 0) return error;
  int32_t multiprocessors = 0;
  error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  BackupArgs args = {};
  args.shape = p.shape;
  args.owner = p.state.owner;
  args.directory = p.state.directory;
  args.tracking = p.tracking;
  args.num_rows = p.num_rows;
  args.num_real_rows = p.num_real_rows;
  args.row_to_request = p.row_to_request;
  args.slots = p.slots;
  args.source_rows = p.source_rows;
  args.source_row_end =
      p.sources == nullptr ? p.shape.region_count * p.shape.region_stride : p.source_row_count;
  args.header = static_cast<WorkspaceHeader*>(workspace);
  args.stats = p.stats;
  args.bytes_per_row = RowBytesOfAll(p.layers, p.layer_count);
  for (; error == cudaSuccess && args.first_row < p.num_rows; args.first_row += kBackupRowsMax) {
    args.closes_call = p.num_rows - args.first_row <= kBackupRowsMax;
    error = BackupRows(p, args, multiprocessors, stream);
  }
  return error;
}

}  // namespace kvtier::cuda
