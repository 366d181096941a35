// The second kernel of a swap-in, and the only one of a replay: rows move as the plan says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/workspace.h"
#include "kernels/params.h"

namespace kvtier::cuda {

// Who can tell where else than in the host pool a slot's bytes are (share_plan.cu).
struct RowDirectory {
  int32_t* hot_rows;  // [slot_count, kDirectoryWords] GroupState::directory; null: nobody
  const int32_t* owner;
  const int32_t* row_to_request;
  int32_t region_count, region_stride, hot_size;
  bool claims;  // who fills a slot's row is decided here, and counted
};

struct CopyPlanArgs {
  StepPlan plan;
  int32_t num_rows;
  const int32_t* num_real_rows;
  int32_t top_k;
  int32_t slot_count;     // slots at or past it are zeros
  int32_t hot_row_count;  // hot rows at or past it are skipped
  // Counts: those that the step left in the header (rows that it copied, and not from kept rows,
  // become bytes), or, without
  // a header, the bytes of the plan.
  WorkspaceHeader* header;
  StatsBlock* stats;
  int64_t bytes_per_row;  // over all layers of the call
  bool closes_call;       // this launch moves the counts
  int32_t blocks_max;     // that copy; 0: one a multiprocessor
  RowDirectory directory;
};

// Enqueues the copies of `layers` (none is allowed: then only counts move).
cudaError_t CopyPlan(CopyPlanArgs args, const LayerView* layers, int32_t layer_count,
                     cudaStream_t stream);

}  // namespace kvtier::cuda
