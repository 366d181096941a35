#include "kernels/cuda/check.h"

#include <algorithm>

#include "kernels/cuda/workspace.h"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {
namespace {

bool IsAligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

bool IsValid(const RowLayout& layout) {
  if (layout.value_bytes <= 0 || layout.value_bytes % kRowAlignment != 0) return false;
  if (layout.format == RowFormat::kContiguous) {
    return layout.row_stride >= layout.value_bytes && layout.row_stride % kRowAlignment == 0;
  }
  if (layout.format != RowFormat::kSplitPage) return false;
  if (layout.scale_bytes < 0 || layout.scale_bytes % kScaleAlignment != 0) return false;
  return layout.page_rows > 0 && layout.page_bytes % kRowAlignment == 0 &&
         layout.page_bytes >=
             int64_t{layout.page_rows} * (int64_t{layout.value_bytes} + layout.scale_bytes);
}

bool AreValid(const LayerView* layers, int32_t layer_count) {
  if (layer_count < 0 || (layer_count > 0 && layers == nullptr)) return false;
  return std::all_of(layers, layers + layer_count, [](const LayerView& layer) {
    return layer.host != nullptr && layer.hot != nullptr && IsAligned(layer.host, kRowAlignment) &&
           IsAligned(layer.hot, kRowAlignment) && IsValid(layer.layout);
  });
}

// What every kernel relies on.
bool IsValid(const GroupShape& shape) {
  return shape.top_k >= 0 && shape.hot_size >= 1 && shape.hot_size <= kHotSizeMax &&
         shape.region_count >= 1 && shape.rows_per_request >= 1 && shape.block_size >= 1 &&
         shape.slot_count >= 0 && shape.max_blocks >= 0 &&
         int64_t{shape.region_stride} >= int64_t{shape.hot_size} + shape.rows_per_request &&
         int64_t{shape.region_count} * shape.region_stride <= INT32_MAX &&
         (shape.policy == EvictionPolicy::kLru || shape.policy == EvictionPolicy::kAged);
}

bool IsValid(const GroupShape& shape, const GroupState& state) {
  return IsValid(shape) && state.owner != nullptr && state.lru != nullptr &&
         (shape.policy == EvictionPolicy::kLru || state.score != nullptr) &&
         (KeptOf(shape, state, 0) == nullptr ||
          int64_t{shape.region_stride} >=
              int64_t{shape.hot_size} + ReservedRows(shape.rows_per_request, shape.policy)) &&
         IsAligned(state.index, 16);
}

bool IsValid(const LaunchOptions& options) {
  return options.threads >= 32 && options.threads <= 1024 && options.threads % 32 == 0 &&
         options.copying_blocks >= 0 && options.cluster >= 0 && options.cluster <= 8 &&
         (options.cluster & (options.cluster - 1)) == 0;
}

bool AllOrNone(bool a, bool b) { return a == b; }

cudaError_t Verdict(bool valid) { return valid ? cudaSuccess : cudaErrorInvalidValue; }

}  // namespace

cudaError_t CheckSwapIn(const SwapInParams& p, const void* workspace,
                        const LaunchOptions& options) {
  if (!IsValid(p.shape, p.state) || p.num_rows < 0) return cudaErrorInvalidValue;
  if (!IsValid(options)) return cudaErrorInvalidValue;
  // One block holds the positions of a request: 16 bits number the entries of its table.
  const int64_t rows = std::min(p.shape.rows_per_request, p.num_rows);
  if (rows > kRequestRowsMax || rows * p.shape.top_k > kHotSizeMax) return cudaErrorInvalidValue;
  const bool has_positions = p.shape.top_k > 0 && p.num_rows > 0;
  const Plan& plan = p.plan;
  return Verdict(
      (p.num_rows == 0 || (p.row_to_request != nullptr && workspace != nullptr)) &&
      (!has_positions || (p.topk != nullptr && p.hot_indices != nullptr)) &&
      (p.sequence_lengths == nullptr || p.block_table != nullptr) &&
      AllOrNone(p.tracking.block_generation != nullptr, p.tracking.backed_generation != nullptr) &&
      (!has_positions || AllOrNone(plan.slots != nullptr, plan.counts != nullptr)) &&
      (!has_positions || AllOrNone(plan.hot_rows != nullptr, plan.counts != nullptr)) &&
      IsAligned(workspace, 256) && AreValid(p.layers, p.layer_count));
}

cudaError_t CheckReplayPlan(const ReplayPlanParams& p, const LaunchOptions& options) {
  if (!IsValid(options)) return cudaErrorInvalidValue;
  // An array without elements may be anywhere.
  const bool has_plan =
      p.plan.counts != nullptr &&
      (p.shape.top_k == 0 || (p.plan.slots != nullptr && p.plan.hot_rows != nullptr));
  return Verdict(IsValid(p.shape) && p.num_rows >= 0 && (p.num_rows == 0 || has_plan) &&
                 AreValid(p.layers, p.layer_count));
}

cudaError_t CheckBackup(const BackupParams& p) {
  if (!IsValid(p.shape, p.state) || p.num_rows < 0 || p.num_rows > kBackupRowsMax ||
      !AreValid(p.layers, p.layer_count)) {
    return cudaErrorInvalidValue;
  }
  if (p.num_rows == 0) return cudaSuccess;
  bool valid =
      p.slots != nullptr && (p.row_to_request != nullptr || p.source_rows != nullptr) &&
      AllOrNone(p.tracking.block_generation != nullptr, p.tracking.backed_generation != nullptr);
  if (p.sources == nullptr || p.layer_count == 0) return Verdict(valid);
  if (p.source_layouts == nullptr || p.source_row_count < 0) return cudaErrorInvalidValue;
  for (int32_t l = 0; l < p.layer_count; ++l) {
    const RowLayout& from = p.source_layouts[l];
    const RowLayout& to = p.layers[l].layout;
    valid = valid && p.sources[l] != nullptr && IsAligned(p.sources[l], kRowAlignment) &&
            IsValid(from) && from.format == to.format && from.value_bytes == to.value_bytes &&
            (to.format == RowFormat::kContiguous || from.scale_bytes == to.scale_bytes);
  }
  return Verdict(valid);
}

cudaError_t CheckInvalidate(const InvalidateParams& p, const void* workspace) {
  return Verdict(IsValid(p.shape, p.state) && p.block_count >= 0 &&
                 (p.block_count == 0 ||
                  (p.blocks != nullptr && workspace != nullptr && IsAligned(workspace, 256))));
}

cudaError_t CheckResetRegion(const ResetRegionParams& p) {
  return Verdict(IsValid(p.shape, p.state) && p.region >= 0 && p.region < p.shape.region_count);
}

}  // namespace kvtier::cuda
