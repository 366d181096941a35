// What of a block ledger outlives it: arrays by block, in memory of the owner's choice.
#pragma once

#include <cstdint>

namespace kvtier {

// All [block_count]. `held` and `tags` may be null: then nothing is remembered.
//
// Written so that whoever reads them after the process was killed at any moment finds a block
// either free or held, and at a generation under which nobody has been promised other rows: the
// generation is raised before a block is marked held, and a block is marked free before it can be
// assigned again.
struct BlockRecords {
  int32_t* generations = nullptr;  // kernels and workers read it
  uint8_t* held = nullptr;         // 1: a request holds it, or it is kept; 0: free
  int64_t* tags = nullptr;         // what the worker called it; 0: nothing
};

}  // namespace kvtier
