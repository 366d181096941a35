// What lies in the scratch memory of a device stream.
//
//   [ header | units of rows | plans of units | tables of regions ]
//
// Only the header has a meaning from one call to the next: it is zero between calls, and its
// place does not depend on the shape, so that groups of different shapes can share a workspace.
// Everything else belongs to one call. Where the caller wants no plan, a row's plan lies in its
// *unit*, region * rows_per_request + rank: that bounds the memory by the regions, however many
// padding rows a call has. Tables (tables.cuh) are here only where shared memory is too small.
#pragma once

#include <cstdint>

#include "kernels/counters.h"
#include "kernels/params.h"

namespace kvtier::cuda {

// Rows of one request in one call (a shared-memory list).
inline constexpr int32_t kRequestRowsMax = 1024;

struct WorkspaceHeader {
  unsigned long long counts[kCounterCount];  // of the call that runs
  uint32_t blocks_done;
};
inline constexpr int64_t kHeaderBytes = 256;
static_assert(sizeof(WorkspaceHeader) <= kHeaderBytes);

constexpr int64_t AlignUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Where the rest lies, in bytes from the start of the workspace.
struct WorkspaceLayout {
  int64_t units;     // int32 [num_rows], for calls without a plan
  int64_t counts;    // int32 [num_rows], ditto
  int64_t slots;     // int32 [units, top_k], ditto
  int64_t hot_rows;  // int32 [units, top_k], ditto
  int64_t tables;    // [region_count, tables_of_region]
  int64_t total;
};

inline WorkspaceLayout MakeWorkspaceLayout(const GroupShape& shape, int32_t num_rows,
                                           int64_t tables_of_region) {
  const int64_t units = int64_t{shape.region_count} * shape.rows_per_request;
  const int64_t plan_bytes = AlignUp(units * shape.top_k * int64_t{sizeof(int32_t)});
  WorkspaceLayout layout;
  layout.units = kHeaderBytes;
  layout.counts = layout.units + AlignUp(int64_t{num_rows} * int64_t{sizeof(int32_t)});
  layout.slots = layout.counts + AlignUp(int64_t{num_rows} * int64_t{sizeof(int32_t)});
  layout.hot_rows = layout.slots + plan_bytes;
  layout.tables = layout.hot_rows + plan_bytes;
  layout.total = layout.tables + shape.region_count * tables_of_region;
  return layout;
}

}  // namespace kvtier::cuda
