// A block ledger as it is after a day: filled by requests of random lengths that came, grew and
// went; and how far apart the blocks of new requests then lie.
//
//   BlockLedger ledger(...);
//   Churn(&ledger, {.fills = 3});
//   const std::vector<Table> tables = Place(&ledger, 64, 512, /*at_once=*/0);
//   const Spread spread = SpreadOf(tables, block_bytes);
#pragma once

#include <cstdint>
#include <vector>

#include "server/host_pool/block_ledger.h"

namespace kvtier::testing {

struct ChurnOptions {
  int32_t fills = 3;     // how often as many blocks as there are have been assigned at the end
  int32_t growing = 64;  // requests that grow at a time, a block each in turn
  // Of a request, log-uniform. A random share of them is assigned at once, the rest in turn.
  int32_t blocks_min = 8;
  int32_t blocks_max = 4096;
  double free_share = 0.1;  // of the pool, at the end
  uint64_t seed = 1;
};

// A request that has grown stays until the pool is full; then random ones go. Holders are 0, 1, ...
void Churn(BlockLedger* ledger, const ChurnOptions& options);

// The block ids of one request, in order of its positions.
using Table = std::vector<int32_t>;

// New requests of `blocks` each: `at_once` of them first, a request after the other, and then a
// block each in turn. Their holders are `first_holder` and up.
std::vector<Table> Place(BlockLedger* ledger, int64_t first_holder, int32_t requests,
                         int32_t blocks, int32_t at_once);
// Frees what Place took.
void Remove(BlockLedger* ledger, int64_t first_holder, int32_t requests);

// How far apart the rows of requests lie in one layer.
struct Spread {
  double pieces = 0;       // runs of neighbouring blocks, a request
  double large_share = 0;  // of all blocks: in pieces of at least 2 MiB
  double huge_pages = 0;   // 2 MiB pages touched, a request; the layer begins at one
};
Spread SpreadOf(const std::vector<Table>& tables, int64_t block_bytes);

}  // namespace kvtier::testing
