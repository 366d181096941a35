// Which rows of a call belong together. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cpu/workspace.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// Sorts rows [0, real_rows) of a call of `num_rows` into `groups` by the region they name (null:
// none names one). Rows that name -1 belong to no request; rows that name no region, and rows past
// the first `rows_per_request_max` of a region, are rejected and counted. O(rows), one read of each
// entry.
void GroupRows(const GroupShape& shape, int32_t num_rows, int32_t real_rows,
               const int32_t* row_to_request, int32_t rows_per_request_max, RowGroups* groups,
               Counts* counts);

}  // namespace kvtier::cpu
