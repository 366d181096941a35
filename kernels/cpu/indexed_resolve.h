// The fast way to resolve one request: by the index of its region. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cpu/workspace.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// Nothing was resolved: the general way is left.
inline constexpr int32_t kNotIndexed = -1;

// ResolveRequest() of resolve.h, if the region has an index that can be used and an order that is a
// permutation. Else returns kNotIndexed and has changed nothing but the index and outputs, all of
// which the general way writes. `params.state.index` is not null.
int32_t ResolveIndexed(const SwapInParams& params, int32_t region, const int32_t* rows,
                       int32_t row_count, Workspace* workspace, RowCopy* copies);

}  // namespace kvtier::cpu
