// How one call's counts reach a StatsBlock, and how a moment is read back.
//
// A StatsBlock lies in memory that several processes map, and every one of them may be killed at
// any instruction. So nobody waits for anybody: counts are added atomically (none is ever lost),
// and with them, in any order, their weighted sum. A look at the block is of one moment if the sum
// is that of the counts; a torn one passes by a chance of one in 2^32. A writer that dies half-way
// leaves the two apart for ever: by a constant, Imbalance(), which a reader that remembers it can
// allow for.
#pragma once

#include "kernels/counters.h"

namespace kvtier {

// What `block`, a copy that nobody writes, has in `check` beyond the weighted sum of its counts: 0
// if it is of one moment.
uint32_t Imbalance(const StatsBlock& block);

// Adds one call's counts. Never waits. Null `stats` is allowed and does nothing.
void AddCounts(StatsBlock* stats, const Counts& counts);

// Reads all counters of one moment into `counts`. Never stops a writer.
//
// False when no moment was found in a bounded number of looks (writers without pause, or one that
// died half-way): `counts` then holds the last look, each value right by itself.
bool ReadCounts(const StatsBlock* stats, Counts* counts);

}  // namespace kvtier
