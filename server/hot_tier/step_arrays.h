// The arrays of one step of one layer group, and where they lie in scratch memory.
#pragma once

#include <cstdint>

#include "server/core/cache_layout.h"

namespace kvtier {

// Pointers into device memory; shapes as in SwapInParams.
struct StepArrays {
  int32_t num_rows = 0;
  const int32_t* num_real_rows = nullptr;  // null: all rows are real
  const int32_t* row_to_request = nullptr;
  const int32_t* newest_slot = nullptr;
  const int32_t* topk = nullptr;
  int32_t* hot_indices = nullptr;
  int32_t* miss_mask = nullptr;
  int32_t* valid_counts = nullptr;
  int32_t* plan_slots = nullptr;
  int32_t* plan_hot_rows = nullptr;
  int32_t* plan_counts = nullptr;
};

// A step whose inputs come in a message: inputs first, then outputs, so that one write and one
// read move them.
struct InlineStepGeometry {
  ArrayExtent row_to_request, newest_slot, topk;
  ArrayExtent hot_indices, miss_mask, valid_counts, plan_slots, plan_hot_rows, plan_counts;
  int64_t input_bytes = 0;  // from 0
  int64_t output_offset_bytes = 0;
  int64_t total_bytes = 0;
};
InlineStepGeometry InlineStepGeometryOf(int32_t num_rows, int32_t top_k);

// The arrays of `geometry` in memory that starts at `base`.
StepArrays InlineStepArrays(const InlineStepGeometry& geometry, int32_t num_rows, uint8_t* base);

}  // namespace kvtier
