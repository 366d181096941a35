// How one call's counts reach a StatsBlock, and how a moment is read back.
//
// A StatsBlock lies in memory that several processes map, and every one of them may be killed at
// any instruction. So: counts are added atomically (none is ever lost), `sequence` is odd while a
// call's counts are being added (a reader sees all of a call or nothing of it), and a writer waits
// for another one only so long: then it takes the dead writer's turn.
#pragma once

#include "kernels/counters.h"

namespace kvtier {

// Adds one call's counts. Null `stats` is allowed and does nothing.
//
// Never blocks for long: after about 4,096 looks (some 100 us) at one unchanged odd sequence the
// turn of that writer is taken over. If it was only slow and not dead, its counts still arrive in
// full, but a reader may then see a part of them early.
void AddCounts(StatsBlock* stats, const Counts& counts);

// Reads all counters of one moment into `counts`. Never stops a writer.
//
// False when no quiet moment was found in a bounded number of tries (writers without pause, or
// one that died half-way): `counts` then holds the values last read, each of them right by itself,
// but perhaps not of the same moment.
bool ReadCounts(const StatsBlock* stats, Counts* counts);

}  // namespace kvtier
