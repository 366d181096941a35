// The copies of a plan where rows that several regions hold cross PCIe once (share_plan.cu).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/copy_plan.h"
#include "kernels/params.h"

namespace kvtier::cuda {

// Whether a call can find rows in other regions: it has a directory, more rows than one, and no
// more regions than a block has bits for.
bool CanShareRows(const GroupShape& shape, const GroupState& state, const int32_t* row_to_request,
                  int32_t num_rows);

RowDirectory MakeRowDirectory(const GroupShape& shape, const GroupState& state,
                              const int32_t* row_to_request);

// As CopyPlan(); where the directory `claims`, the first layer decides who fills what. The bytes
// that crossed PCIe go to the statistics, and what the header holds if there is one.
cudaError_t SharePlan(const CopyPlanArgs& args, const LayerView* layers, int32_t layer_count,
                      cudaStream_t stream);

}  // namespace kvtier::cuda
