// The contract of the kernels as plain sequential code.
//
// Every other implementation must leave the same bytes behind: outputs, plan, owner, lru,
// hot rows, host rows and counters. Single-threaded, standard library only, written to be
// read. What a step does is described beside each function in reference.cc.
#pragma once

#include "kernels/params.h"

namespace kvtier::reference {

// Classify, walk the LRU, give slots to misses, reorder, copy. Writes every element of
// every output that is not null. Rows of one request in one call are one transaction over
// the union of their lookups; the k-th of them (batch order) has its newest row at
// region start + hot_size + k.
void SwapIn(const SwapInParams& params);

// Copies (or zeroes) what the plan says on params.layers.
void ReplayPlan(const ReplayPlanParams& params);

// Copies rows to the host pool, marks them backed, drops stale copies in the request's region.
void Backup(const BackupParams& params);

// Drops cached copies of blocks in all regions.
void Invalidate(const InvalidateParams& params);

// Empties one region.
void ResetRegion(const ResetRegionParams& params);

}  // namespace kvtier::reference
