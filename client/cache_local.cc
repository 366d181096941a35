// The in-process plane of Cache: kernels on the mapped memory, run by this process.
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cache.h"
#include "client/cache_state.h"
#include "client/error.h"
#include "kernels/params.h"

namespace kvtier::client {
namespace {

// The part of a group's layers that a call copies.
LayerSpan SpanOf(const GroupKernelArrays& arrays, const std::optional<LayerSpan>& layers,
                 int32_t first_layer_default) {
  const auto count = static_cast<int32_t>(arrays.layers.size());
  return layers.value_or(LayerSpan{first_layer_default, count - first_layer_default});
}

absl::Status CheckTensor(const TensorLayer& tensor, const RowLayout& row, int32_t row_count,
                         size_t layer) {
  const std::string field = absl::StrCat("layers[", layer, "]");
  const RowLayout& layout = tensor.layout;
  if (tensor.rows == nullptr || reinterpret_cast<uintptr_t>(tensor.rows) % kRowAlignment != 0) {
    return ArgumentError(field, "null or unaligned", absl::StrCat(kRowAlignment, "-byte aligned"));
  }
  if (layout.format != row.format || RowBytes(layout) != RowBytes(row) ||
      layout.value_bytes != row.value_bytes) {
    return ArgumentError(absl::StrCat(field, ".layout"),
                         absl::StrCat("of rows of ", RowBytes(layout), " bytes"),
                         absl::StrCat("of the cache's format and ", RowBytes(row), " bytes"));
  }
  const bool fits =
      layout.format == RowFormat::kContiguous
          ? layout.row_stride >= layout.value_bytes
          : layout.page_rows > 0 && layout.page_bytes / layout.page_rows >= RowBytes(layout);
  const int64_t unit =
      layout.format == RowFormat::kContiguous ? layout.row_stride : layout.page_bytes;
  if (fits && unit <= INT64_MAX / (int64_t{row_count} + 1)) return absl::OkStatus();
  return ArgumentError(absl::StrCat(field, ".layout"), "with overlapping or endless rows",
                       "of rows side by side");
}

absl::Status CheckSlots(std::span<const int32_t> slots, int32_t slot_count, int32_t low) {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= low && slots[i] < slot_count) continue;
    return MakeError(
        absl::StatusCode::kOutOfRange, "SLOT_OUT_OF_RANGE",
        absl::StrCat("slot ", slots[i], " of row ", i, " is outside ", low, "..", slot_count - 1),
        {{"slot", absl::StrCat(slots[i])},
         {"limit", absl::StrCat(slot_count)},
         {"row", absl::StrCat(i)}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Cache::SwapIn(int32_t group, int32_t num_rows, const SwapInOptions& options) {
  if (absl::Status status = state_->CheckLayers(group, options.layers); !status.ok()) return status;
  if (absl::Status status = state_->CheckRows(num_rows); !status.ok()) return status;
  const CacheView& cache = view();
  const GroupView& arrays = cache.groups[group];
  const GroupKernelArrays& kernel = state_->memory().kernel_arrays(group);
  const LayerSpan layers = SpanOf(kernel, options.layers, /*first_layer_default=*/0);
  const SwapInParams params = {
      .shape = arrays.shape,
      .state = kernel.state,
      .tracking = kernel.tracking,
      .num_rows = num_rows,
      .num_real_rows = cache.num_real_rows,
      .row_to_request = cache.row_to_request.data(),
      .topk = arrays.topk.data(),
      .newest_slot = cache.newest_slot.data(),
      .block_table = options.use_slots ? nullptr : cache.block_table.data(),
      .sequence_lengths = cache.sequence_lengths.data(),
      .hot_indices = kernel.hot_indices,
      .miss_mask = kernel.miss_mask,
      .valid_counts = kernel.valid_counts,
      .plan = kernel.plan,
      .layers = kernel.layers.data() + layers.first_layer,
      .layer_count = layers.layer_count,
      .stats = kernel.stats,
  };
  return state_->RunKernel(/*writes_host=*/false, [&](Device& device) {
    return device.SwapIn(params, options.device_stream);
  });
}

absl::Status Cache::ReplayPlan(int32_t group, int32_t num_rows,
                               const std::optional<LayerSpan>& layers,
                               DeviceStreamRef device_stream) {
  if (absl::Status status = state_->CheckLayers(group, layers); !status.ok()) return status;
  if (absl::Status status = state_->CheckRows(num_rows); !status.ok()) return status;
  const GroupKernelArrays& kernel = state_->memory().kernel_arrays(group);
  const LayerSpan span = SpanOf(kernel, layers, /*first_layer_default=*/1);
  const ReplayPlanParams params = {
      .shape = view().groups[group].shape,
      .num_rows = num_rows,
      .num_real_rows = view().num_real_rows,
      .plan = kernel.plan,
      .state = kernel.state,
      .row_to_request = view().row_to_request.data(),
      .layers = kernel.layers.data() + span.first_layer,
      .layer_count = span.layer_count,
      .stats = kernel.stats,
  };
  return state_->RunKernel(/*writes_host=*/false, [&](Device& device) {
    return device.ReplayPlan(params, device_stream);
  });
}

absl::Status Cache::BackupNewest(int32_t num_rows, DeviceStreamRef device_stream) {
  if (absl::Status status = state_->CheckRows(num_rows); !status.ok()) return status;
  return state_->RunKernel(/*writes_host=*/true, [&](Device& device) {
    for (size_t g = 0; g < view().groups.size(); ++g) {
      const GroupKernelArrays& kernel = state_->memory().kernel_arrays(static_cast<int32_t>(g));
      const BackupParams params = {
          .shape = view().groups[g].shape,
          .state = kernel.state,
          .tracking = kernel.tracking,
          .num_rows = num_rows,
          .num_real_rows = view().num_real_rows,
          .row_to_request = view().row_to_request.data(),
          .slots = view().newest_slot.data(),
          .layers = kernel.layers.data(),
          .layer_count = static_cast<int32_t>(kernel.layers.size()),
          .stats = kernel.stats,
      };
      if (absl::Status status = device.Backup(params, device_stream); !status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status Cache::BackupTensor(int32_t group, std::span<const TensorLayer> layers,
                                 int32_t source_row_count, std::span<const int32_t> source_rows,
                                 std::span<const int32_t> slots, std::span<const int32_t> regions,
                                 DeviceStreamRef device_stream) {
  if (absl::Status status = state_->CheckGroup(group); !status.ok()) return status;
  const GroupKernelArrays& kernel = state_->memory().kernel_arrays(group);
  const GroupShape& shape = view().groups[group].shape;
  if (layers.size() != kernel.layers.size()) {
    return ArgumentError("layers", absl::StrCat(layers.size(), " tensors"),
                         absl::StrCat(kernel.layers.size(), ", one for each layer of the group"));
  }
  if (source_rows.size() != slots.size() || slots.size() > INT32_MAX ||
      (!regions.empty() && regions.size() != slots.size())) {
    return ArgumentError(
        "source_rows, slots, regions",
        absl::StrCat(source_rows.size(), ", ", slots.size(), " and ", regions.size(), " entries"),
        "the same number (regions: or none)");
  }
  if (source_row_count < 0) {
    return ArgumentError("source_row_count", absl::StrCat(source_row_count), "at least 0");
  }
  // On a GPU the kernel looks: out of range is skipped.
  if (state_->device().host_readable()) {
    absl::Status status = CheckSlots(slots, shape.slot_count, kNone);
    if (!status.ok()) return status;
  }
  std::vector<const uint8_t*> sources;
  std::vector<RowLayout> layouts;
  for (size_t l = 0; l < layers.size(); ++l) {
    absl::Status status = CheckTensor(layers[l], kernel.layers[l].layout, source_row_count, l);
    if (!status.ok()) return status;
    sources.push_back(layers[l].rows);
    layouts.push_back(layers[l].layout);
  }
  const BackupParams params = {
      .shape = shape,
      .state = kernel.state,
      .tracking = kernel.tracking,
      .num_rows = static_cast<int32_t>(slots.size()),
      .row_to_request = regions.empty() ? nullptr : regions.data(),
      .slots = slots.data(),
      .source_rows = source_rows.data(),
      .sources = sources.data(),
      .source_layouts = layouts.data(),
      .source_row_count = source_row_count,
      .layers = kernel.layers.data(),
      .layer_count = static_cast<int32_t>(kernel.layers.size()),
      .stats = kernel.stats,
  };
  return state_->RunKernel(/*writes_host=*/true,
                           [&](Device& device) { return device.Backup(params, device_stream); });
}

absl::Status Cache::CheckBackup() const { return state_->CheckMemory(/*writes_host=*/true); }

absl::Status Cache::MarkBacked(int32_t group, std::span<const int32_t> slots) {
  if (absl::Status status = state_->CheckGroup(group); !status.ok()) return status;
  const GroupShape& shape = view().groups[group].shape;
  if (absl::Status status = CheckSlots(slots, shape.slot_count, 0); !status.ok()) return status;
  const RowTracking& tracking = state_->memory().kernel_arrays(group).tracking;
  return state_->RunKernel(/*writes_host=*/true, [&](Device&) {
    for (const int32_t slot : slots) {
      // C++20's atomic_ref has no const form; of the read-only mapping there are only loads.
      auto& block = const_cast<int32_t&>(tracking.block_generation[slot / shape.block_size]);
      const int32_t generation = std::atomic_ref<int32_t>(block).load(std::memory_order_acquire);
      // Release: whoever sees the row backed sees its bytes.
      std::atomic_ref<int32_t>(tracking.backed_generation[slot])
          .store(generation, std::memory_order_release);
    }
    return absl::OkStatus();
  });
}

}  // namespace kvtier::client
