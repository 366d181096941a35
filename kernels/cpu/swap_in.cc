#include <algorithm>

#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group_rows.h"
#include "kernels/cpu/resolve.h"
#include "kernels/kept_rows.h"
#include "kernels/stats_block.h"

namespace kvtier::cpu {
namespace {

// Rows that take no part still get their outputs: nothing of the step before may survive.
void MaskOtherRows(const SwapInParams& params, int32_t real_rows, const RowGroups& groups) {
  const int32_t top_k = params.shape.top_k;
  for (int32_t row = 0; row < params.num_rows; ++row) {
    if (row < real_rows && groups.request_of_row[row] >= 0) continue;
    std::fill_n(params.hot_indices + int64_t{row} * top_k, top_k, kNone);
    if (params.miss_mask != nullptr) std::fill_n(params.miss_mask + int64_t{row} * top_k, top_k, 0);
    if (params.valid_counts != nullptr) params.valid_counts[row] = 0;
    if (params.plan.counts != nullptr) params.plan.counts[row] = 0;
  }
}

// Sums what the threads counted and clears it for the next call.
void CollectCounts(Executor& executor, Counts* counts) {
  for (int32_t worker = 0; worker < executor.thread_count(); ++worker) {
    Counts& part = executor.workspace(worker).counts;
    *counts += part;
    part = Counts{};
  }
}

}  // namespace

void SwapIn(const SwapInParams& params, Executor& executor) {
  CallScratch& call = executor.call_scratch();
  RowGroups& groups = call.groups;
  const int32_t real_rows = RealRowCount(params.num_real_rows, params.num_rows);
  Counts counts;
  GroupRows(params.shape, params.num_rows, real_rows, params.row_to_request,
            params.shape.rows_per_request, &groups, &counts);
  MaskOtherRows(params, real_rows, groups);

  const int32_t requests = groups.request_count;
  call.list_count = requests;
  Grow(call.copy_starts, params.num_rows);
  Grow(call.copy_counts, params.num_rows);
  Grow(call.copies, int64_t{params.num_rows} * params.shape.top_k);
  for (int32_t worker = 0; worker < executor.thread_count(); ++worker) {
    executor.workspace(worker).Reserve(params.shape);
  }
  executor.ParallelFor(requests, [&](int32_t worker, int64_t i) {
    const int64_t start = int64_t{groups.starts[i]} * params.shape.top_k;
    call.copy_starts[i] = start;
    call.copy_counts[i] =
        ResolveRequest(params, groups.regions[i], groups.rows.data() + groups.starts[i],
                       groups.starts[i + 1] - groups.starts[i], &executor.workspace(worker),
                       call.copies.data() + start);
  });
  counts[Counter::kBytesCopied] = CopyLists(params.layers, params.layer_count, call, executor);
  CollectCounts(executor, &counts);
  counts[Counter::kSteps] = requests > 0 ? 1 : 0;
  AddCounts(params.stats, counts);
}

void ReplayPlan(const ReplayPlanParams& params, Executor& executor) {
  CallScratch& call = executor.call_scratch();
  const GroupShape& shape = params.shape;
  const int32_t rows = RealRowCount(params.num_real_rows, params.num_rows);
  call.list_count = rows;
  Grow(call.copy_starts, rows);
  Grow(call.copy_counts, rows);
  Grow(call.copies, int64_t{rows} * shape.top_k);
  const int32_t hot_rows = shape.region_count * shape.region_stride;
  // The plan may lie in memory of another process: copied and checked once, then trusted.
  for (int32_t row = 0; row < rows; ++row) {
    const int64_t start = int64_t{row} * shape.top_k;
    const int32_t entries = std::clamp(params.plan.counts[row], 0, shape.top_k);
    int32_t count = 0;
    for (int32_t i = 0; i < entries; ++i) {
      const int32_t slot = params.plan.slots[start + i];
      const int32_t hot_row = params.plan.hot_rows[start + i];
      if (hot_row < 0 || hot_row >= hot_rows) continue;
      call.copies[start + count++] = {CheckedSource(slot, shape.slot_count, hot_rows), hot_row};
    }
    call.copy_starts[row] = start;
    call.copy_counts[row] = count;
  }
  Counts counts;
  counts[Counter::kBytesCopied] = CopyLists(params.layers, params.layer_count, call, executor);
  AddCounts(params.stats, counts);
}

}  // namespace kvtier::cpu
