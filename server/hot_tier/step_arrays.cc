#include "server/hot_tier/step_arrays.h"

#include "server/core/limits.h"

namespace kvtier {

InlineStepGeometry InlineStepGeometryOf(int32_t num_rows, int32_t top_k) {
  InlineStepGeometry geometry;
  const auto place = [&geometry](int64_t count) {
    const ArrayExtent extent = {geometry.total_bytes,
                                count * static_cast<int64_t>(sizeof(int32_t))};
    geometry.total_bytes += (extent.size_bytes + kArrayAlignmentBytes - 1) / kArrayAlignmentBytes *
                            kArrayAlignmentBytes;
    return extent;
  };
  const int64_t rows = num_rows;
  const int64_t entries = rows * top_k;
  geometry.row_to_request = place(rows);
  geometry.newest_slot = place(rows);
  geometry.topk = place(entries);
  geometry.input_bytes = geometry.total_bytes;
  geometry.output_offset_bytes = geometry.total_bytes;
  geometry.hot_indices = place(entries);
  geometry.miss_mask = place(entries);
  geometry.valid_counts = place(rows);
  geometry.plan_slots = place(entries);
  geometry.plan_hot_rows = place(entries);
  geometry.plan_counts = place(rows);
  return geometry;
}

StepArrays InlineStepArrays(const InlineStepGeometry& geometry, int32_t num_rows, uint8_t* base) {
  const auto at = [base](const ArrayExtent& extent) {
    return reinterpret_cast<int32_t*>(base + extent.offset_bytes);
  };
  StepArrays arrays;
  arrays.num_rows = num_rows;
  arrays.row_to_request = at(geometry.row_to_request);
  arrays.newest_slot = at(geometry.newest_slot);
  arrays.topk = at(geometry.topk);
  arrays.hot_indices = at(geometry.hot_indices);
  arrays.miss_mask = at(geometry.miss_mask);
  arrays.valid_counts = at(geometry.valid_counts);
  arrays.plan_slots = at(geometry.plan_slots);
  arrays.plan_hot_rows = at(geometry.plan_hot_rows);
  arrays.plan_counts = at(geometry.plan_counts);
  return arrays;
}

}  // namespace kvtier
