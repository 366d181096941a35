#include "kernels/cpu/group_rows.h"

#include <algorithm>

namespace kvtier::cpu {
namespace {

// Room for all rows of the call, real or not: how many are real changes from step to step.
void BeginCall(const GroupShape& shape, int32_t num_rows, RowGroups* groups) {
  Grow(groups->regions, num_rows);
  Grow(groups->starts, int64_t{num_rows} + 1);
  Grow(groups->rows, num_rows);
  Grow(groups->request_of_row, num_rows);
  Grow(groups->ranks, num_rows);
  Grow(groups->stamps, shape.region_count);
  Grow(groups->request_of_region, shape.region_count);
  groups->request_count = 0;
  if (++groups->stamp == 0) {
    std::fill(groups->stamps.begin(), groups->stamps.end(), 0);
    groups->stamp = 1;
  }
}

}  // namespace

void GroupRows(const GroupShape& shape, int32_t num_rows, int32_t real_rows,
               const int32_t* row_to_request, int32_t rows_per_request_max, RowGroups* groups,
               Counts* counts) {
  BeginCall(shape, num_rows, groups);
  // starts[i + 1] counts the rows of request i first, then becomes their end.
  groups->starts[0] = 0;
  for (int32_t row = 0; row < real_rows; ++row) {
    const int32_t region = row_to_request == nullptr ? kNone : row_to_request[row];
    int32_t& request = groups->request_of_row[row];
    request = region == kNone ? RowGroups::kNoRequest : RowGroups::kRejected;
    if (region >= 0 && region < shape.region_count) {
      if (groups->stamps[region] != groups->stamp) {
        groups->stamps[region] = groups->stamp;
        groups->request_of_region[region] = groups->request_count;
        groups->regions[groups->request_count] = region;
        groups->starts[++groups->request_count] = 0;
      }
      const int32_t candidate = groups->request_of_region[region];
      int32_t& size = groups->starts[candidate + 1];
      if (size < rows_per_request_max) {
        request = candidate;
        groups->ranks[row] = size++;
      }
    }
    if (request == RowGroups::kRejected) ++(*counts)[Counter::kRejectedRows];
  }
  for (int32_t i = 0; i < groups->request_count; ++i) groups->starts[i + 1] += groups->starts[i];
  for (int32_t row = 0; row < real_rows; ++row) {
    const int32_t request = groups->request_of_row[row];
    if (request >= 0) groups->rows[groups->starts[request] + groups->ranks[row]] = row;
  }
}

}  // namespace kvtier::cpu
