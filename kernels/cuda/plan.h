// Where a step's plan lies: in the caller's arrays, or in the workspace.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace kvtier::cuda {

// Row r has counts[r] entries from place PlanStart(r) on: in the caller's plan a row's place is
// its number, in the workspace its unit (workspace.h).
struct StepPlan {
  int32_t* slots;
  int32_t* hot_rows;
  int32_t* counts;  // [num_rows]
  int32_t* units;   // [num_rows]; null: the caller's plan
};

KVTIER_HD inline int64_t PlanStart(int32_t row_or_unit, int32_t top_k) {
  return int64_t{row_or_unit} * top_k;
}

}  // namespace kvtier::cuda
