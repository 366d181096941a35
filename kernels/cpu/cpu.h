// The kernels on CPU cores: the contract of reference/reference.h, bit for bit, at speed.
//
// A real implementation, not a model: it serves machines without a GPU, runs in a worker's
// process as well as in the daemon, and is what the GPU kernels are compared with at scale.
//
// Example:
//   kvtier::cpu::Executor executor(/*thread_count=*/2);  // once
//   kvtier::cpu::SwapIn(params, executor);               // every step; allocates nothing
//
// Every function returns when its effects are complete. Calls on one Executor must not overlap;
// calls on different Executors may, as long as no two of them are SwapIn or ResetRegion on one
// region. Invalidate and Backup may run at any time beside another process's SwapIn: owners are
// read and written atomically, an owner is dropped by compare-and-exchange, and nothing that is
// read from shared memory becomes an index before it was copied and checked.
//
// Sizes (GroupShape, layouts, layer_count) are trusted, as they are checked when a cache is
// created. The values behind pointers are not.
#pragma once

#include "kernels/cpu/executor.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// One step. Requests are resolved in parallel, then rows copied in parallel.
void SwapIn(const SwapInParams& params, Executor& executor);

// Copies (or zeroes) what the plan says on params.layers. Entries outside the hot buffer are
// skipped, host slots outside the pool zero the hot row.
void ReplayPlan(const ReplayPlanParams& params, Executor& executor);

// Copies rows to the host pool. A row counts as backed only after its bytes have arrived, and for
// the generation its block had when the call began.
void Backup(const BackupParams& params, Executor& executor);

// Drops cached copies of blocks in all regions.
void Invalidate(const InvalidateParams& params, Executor& executor);

// Empties one region; an index out of range does nothing.
void ResetRegion(const ResetRegionParams& params);

}  // namespace kvtier::cpu
