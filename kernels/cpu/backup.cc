#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group_rows.h"
#include "kernels/cpu/keep_rows.h"
#include "kernels/stats_block.h"

namespace kvtier::cpu {
namespace {

// Below this many written rows in a region, comparing each owner with each of them is cheaper than
// a table.
constexpr int32_t kCompareRowsMax = 4;

int32_t LoadGeneration(const RowTracking& tracking, const GroupShape& shape, int32_t slot) {
  if (tracking.block_generation == nullptr) return 0;
  return std::atomic_ref<int32_t>(
             const_cast<int32_t&>(tracking.block_generation[slot / shape.block_size]))
      .load();
}

// Whether the rows of this call go to kept rows, too.
bool Keeps(const BackupParams& p) {
  return p.source_rows == nullptr && p.sources == nullptr && KeptOf(p.shape, p.state, 0) != nullptr;
}

// The rows that count, in batch order.
void CollectJobs(const BackupParams& p, int32_t rows, CallScratch* call) {
  const int32_t hot_rows = p.shape.region_count * p.shape.region_stride;
  const int32_t source_row_end = p.sources == nullptr ? hot_rows : p.source_row_count;
  const bool keeps = Keeps(p);
  call->backups.clear();
  call->backups.reserve(p.num_rows);
  call->table.Reserve(p.num_rows);
  Grow(call->backup_slots, p.num_rows);
  for (int32_t row = 0; row < rows; ++row) {
    call->backup_slots[row] = kNone;
    const int32_t request = call->groups.request_of_row[row];
    if (request == RowGroups::kRejected) continue;
    if (request == RowGroups::kNoRequest && p.source_rows == nullptr) continue;
    const int32_t source = p.source_rows != nullptr
                               ? p.source_rows[row]
                               : call->groups.regions[request] * p.shape.region_stride +
                                     p.shape.hot_size + call->groups.ranks[row];
    const int32_t slot = p.slots[row];
    if (slot < 0 || slot >= p.shape.slot_count || source < 0 || source >= source_row_end) continue;
    call->backup_slots[row] = slot;
    const int32_t kept =
        keeps && request >= 0
            ? call->groups.regions[request] * p.shape.rows_per_request + call->groups.ranks[row]
            : kNone;
    call->backups.push_back({slot, source, LoadGeneration(p.tracking, p.shape, slot), false, kept});
  }
}

// Of several rows for one slot the last one is written, and no other, whatever the thread order.
void MarkSuperseded(CallScratch* call) {
  const auto count = static_cast<int32_t>(call->backups.size());
  if (count < 2) return;
  const LookupTable::View table = call->table.Clear(count);
  for (int32_t i = count - 1; i >= 0; --i) {
    BackupJob& job = call->backups[i];
    job.superseded = table.FindOrInsert(job.slot, i + 1) != i + 1;
  }
}

void CopyJobs(const BackupParams& p, const CallScratch& call, Executor& executor) {
  const int32_t parts = PartsPerItem(p.layer_count, executor);
  const auto count = static_cast<int64_t>(call.backups.size());
  executor.ParallelFor(int64_t{p.layer_count} * parts, [&](int32_t, int64_t index) {
    const int64_t l = index / parts, part = index % parts;
    const LayerView& layer = p.layers[l];
    const uint8_t* source = p.sources == nullptr ? layer.hot : p.sources[l];
    const RowLayout& source_layout = p.sources == nullptr ? layer.layout : p.source_layouts[l];
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
      const BackupJob& job = call.backups[i];
      if (job.kept >= 0) {
        const int32_t region = job.kept / p.shape.rows_per_request;
        CopyRow(layer.hot, layer.layout,
                KeptRow(p.shape, region, job.kept % p.shape.rows_per_request), layer.hot,
                layer.layout, job.source_row);
      }
      if (job.superseded) continue;
      CopyRow(layer.host, layer.layout, job.slot, source, source_layout, job.source_row);
    }
  });
}

// Copies of the written slots in the region of request `i` are stale.
void DropCopies(const BackupParams& p, const CallScratch& call, int64_t i, Workspace* workspace) {
  const RowGroups& groups = call.groups;
  const int32_t begin = groups.starts[i], end = groups.starts[i + 1];
  int32_t* owners = p.state.owner + int64_t{groups.regions[i]} * p.shape.hot_size;
  if (end - begin > kCompareRowsMax) {
    const LookupTable::View written = workspace->table.Clear(end - begin);
    for (int32_t j = begin; j < end; ++j) {
      const int32_t slot = call.backup_slots[groups.rows[j]];
      if (slot >= 0) written.FindOrInsert(slot, 1);
    }
    for (int32_t h = 0; h < p.shape.hot_size; ++h) {
      const int32_t owner = std::atomic_ref<int32_t>(owners[h]).load(std::memory_order_relaxed);
      if (written.Find(owner) != LookupTable::kAbsent) DropOwner(&owners[h], owner);
    }
    return;
  }
  for (int32_t j = begin; j < end; ++j) {
    const int32_t slot = call.backup_slots[groups.rows[j]];
    if (slot < 0) continue;
    for (int32_t h = 0; h < p.shape.hot_size; ++h) {
      const int32_t owner = std::atomic_ref<int32_t>(owners[h]).load(std::memory_order_relaxed);
      if (owner == slot) DropOwner(&owners[h], owner);
    }
  }
}

// What the kept rows of request `i` hold from now on, row after row.
void NoteKept(const BackupParams& p, const CallScratch& call, int64_t i) {
  const RowGroups& groups = call.groups;
  int32_t* const kept = KeptOf(p.shape, p.state, groups.regions[i]);
  if (kept == nullptr) return;
  for (int32_t j = groups.starts[i]; j < groups.starts[i + 1]; ++j) {
    const int32_t row = groups.rows[j], slot = call.backup_slots[row];
    if (slot < 0) continue;
    DropKept(p.shape, kept, slot);
    if (!Keeps(p)) continue;
    std::atomic_ref<int32_t>(kept[groups.ranks[row]]).store(slot);
    // Whoever assigns the block raises its generation and then looks for notes. So either that one
    // finds this note, or the row is found not to be backed any more here.
    if (p.tracking.backed_generation != nullptr &&
        std::atomic_ref<int32_t>(p.tracking.backed_generation[slot]).load() !=
            LoadGeneration(p.tracking, p.shape, slot)) {
      DropKept(p.shape, kept, slot);
    }
  }
}

}  // namespace

void Backup(const BackupParams& params, Executor& executor) {
  CallScratch& call = executor.call_scratch();
  const int32_t rows = RealRowCount(params.num_real_rows, params.num_rows);
  // Rows of a tensor are the caller's to number; newest rows are reserved, so many a region.
  const int32_t rows_per_request_max = params.source_rows == nullptr
                                           ? params.shape.rows_per_request
                                           : std::numeric_limits<int32_t>::max();
  Counts counts;
  GroupRows(params.shape, params.num_rows, rows, params.row_to_request, rows_per_request_max,
            &call.groups, &counts);
  CollectJobs(params, rows, &call);
  MarkSuperseded(&call);
  CopyJobs(params, call, executor);
  if (params.tracking.backed_generation != nullptr) {
    for (const BackupJob& job : call.backups) {
      // Release: who sees the generation sees the bytes.
      std::atomic_ref<int32_t>(params.tracking.backed_generation[job.slot])
          .store(job.generation, std::memory_order_release);
    }
  }
  for (int32_t worker = 0; worker < executor.thread_count(); ++worker) {
    executor.workspace(worker).table.Reserve(params.num_rows);
  }
  executor.ParallelFor(call.groups.request_count, [&](int32_t worker, int64_t i) {
    DropCopies(params, call, i, &executor.workspace(worker));
    NoteKept(params, call, i);
  });

  const auto backed_up = static_cast<int64_t>(call.backups.size());
  counts[Counter::kBackedUpRows] = backed_up;
  for (int32_t l = 0; l < params.layer_count; ++l) {
    counts[Counter::kBackedUpBytes] += backed_up * RowBytes(params.layers[l].layout);
  }
  AddCounts(params.stats, counts);
}

}  // namespace kvtier::cpu
