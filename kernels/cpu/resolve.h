// One request's part of a step: everything but the bytes. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cpu/workspace.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// Resolves the accepted rows `rows` [row_count] of the request in `region`: writes their outputs
// and plans, the region's owners and order, and adds to workspace->counts (all but bytes).
// `workspace` has been reserved for the shape. The rows to copy or zero go to `copies` [row_count *
// top_k]. Returns their number.
//
// Cost: O(row_count * top_k + hot_size), one pass over each.
int32_t ResolveRequest(const SwapInParams& params, int32_t region, const int32_t* rows,
                       int32_t row_count, Workspace* workspace, RowCopy* copies);

}  // namespace kvtier::cpu
