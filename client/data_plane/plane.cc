#include "client/data_plane/plane.h"

#include <algorithm>
#include <atomic>

#include "kernels/layout.h"
#include "kernels/stats_block.h"

namespace kvtier::data_plane {
namespace {

// Copies of the statistics until one is of one moment.
constexpr int kStatsCopiesMax = 4;

RowLayout LayoutOf(const kvtier_layer& layer) {
  return {.format = static_cast<RowFormat>(layer.format),
          .value_bytes = layer.value_bytes,
          .scale_bytes = layer.scale_bytes,
          .page_rows = layer.page_rows,
          .row_stride = layer.row_stride,
          .page_bytes = layer.page_bytes};
}

// The caller's array where there is one.
template <typename T>
T* Or(T* given, T* step) {
  return given != nullptr ? given : step;
}

Error CheckSource(const kvtier_layer& source, const RowLayout& row, int32_t row_count,
                  int32_t layer) {
  const std::string field = "sources[" + std::to_string(layer) + "]";
  if (source.hot == nullptr || reinterpret_cast<uintptr_t>(source.hot) % kRowAlignment != 0) {
    return ArgumentError(field, "null or unaligned",
                         std::to_string(kRowAlignment) + "-byte aligned");
  }
  const RowLayout layout = LayoutOf(source);
  if (layout.format != row.format || layout.value_bytes != row.value_bytes ||
      RowBytes(layout) != RowBytes(row)) {
    return ArgumentError(field, "of rows of " + std::to_string(RowBytes(layout)) + " bytes",
                         "of the cache's format and " + std::to_string(RowBytes(row)) + " bytes");
  }
  const bool contiguous = layout.format == RowFormat::kContiguous;
  const bool fits =
      contiguous ? layout.row_stride >= layout.value_bytes && layout.row_stride % kRowAlignment == 0
                 : layout.page_rows > 0 && layout.page_bytes % kRowAlignment == 0 &&
                       layout.page_bytes / layout.page_rows >= RowBytes(layout);
  const int64_t unit = contiguous ? layout.row_stride : layout.page_bytes;
  if (fits && unit <= INT64_MAX / (int64_t{row_count} + 1)) return {};
  return ArgumentError(
      field, "with overlapping, unaligned or endless rows",
      "of rows side by side, at multiples of " + std::to_string(kRowAlignment) + " bytes");
}

}  // namespace

Plane::~Plane() {
  (void)device_->Finish();
  mappings_.clear();
}

void* Plane::Keep(std::unique_ptr<Mapping> mapping) {
  void* const data = mapping->data();
  mappings_.push_back(std::move(mapping));
  return data;
}

Error Plane::SetArrays(const kvtier_arrays& arrays) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<GroupShape> shapes;
  groups_.clear();
  for (int32_t g = 0; g < arrays.group_count; ++g) {
    const kvtier_group& from = arrays.groups[g];
    Group& group = groups_.emplace_back();
    group.shape = {.top_k = from.top_k,
                   .hot_size = from.hot_size,
                   .region_count = arrays.region_count,
                   .region_stride = from.region_stride,
                   .rows_per_request = from.rows_per_request,
                   .block_size = arrays.block_size,
                   .slot_count = arrays.slot_count,
                   .max_blocks = arrays.max_blocks,
                   .policy = static_cast<EvictionPolicy>(from.policy)};
    group.state = {.owner = from.owner,
                   .lru = from.lru,
                   .index = from.index,
                   .score = from.score,
                   .directory = from.directory,
                   .kept = from.kept};
    group.tracking = {.block_generation = arrays.block_generation,
                      .backed_generation = from.backed_generation};
    group.plan = {from.plan_slots, from.plan_hot_rows, from.plan_counts};
    group.step = {.topk = from.topk,
                  .row_to_request = arrays.row_to_request,
                  .newest_slot = arrays.newest_slot,
                  .num_real_rows = arrays.num_real_rows,
                  .hot_indices = from.hot_indices,
                  .miss_mask = from.miss_mask,
                  .valid_counts = from.valid_counts};
    group.stats = static_cast<StatsBlock*>(from.stats);
    for (int32_t l = 0; l < from.layer_count; ++l) {
      const kvtier_layer& layer = from.layers[l];
      group.layers.push_back(
          {static_cast<uint8_t*>(layer.host), static_cast<uint8_t*>(layer.hot), LayoutOf(layer)});
    }
    shapes.push_back(group.shape);
  }
  step_rows_ = arrays.step_rows;
  block_table_ = arrays.block_table;
  sequence_lengths_ = arrays.sequence_lengths;
  return device_->Reserve(shapes, step_rows_);
}

Error Plane::CheckGroup(int32_t group) const {
  const auto count = static_cast<int32_t>(groups_.size());
  if (group >= 0 && group < count) return {};
  return ArgumentError("group", std::to_string(group), "in 0.." + std::to_string(count - 1));
}

Error Plane::CheckRows(int32_t num_rows) const {
  if (num_rows >= 0 && num_rows <= step_rows_) return {};
  return ArgumentError("num_rows", std::to_string(num_rows),
                       "in 0.." + std::to_string(step_rows_) + ", the rows of the step buffers");
}

Error Plane::CheckSlots(int32_t group, const int32_t* slots, int32_t count, int32_t low) const {
  const int32_t slot_count = groups_[group].shape.slot_count;
  for (int32_t i = 0; i < count; ++i) {
    if (slots[i] >= low && slots[i] < slot_count) continue;
    return {.code = Code::kOutOfRange,
            .reason = "SLOT_OUT_OF_RANGE",
            .message = "slot " + std::to_string(slots[i]) + " of row " + std::to_string(i) +
                       " is outside " + std::to_string(low) + ".." + std::to_string(slot_count - 1),
            .metadata = {{"slot", std::to_string(slots[i])},
                         {"limit", std::to_string(slot_count)},
                         {"row", std::to_string(i)}}};
  }
  return {};
}

Error Plane::SpanOf(int32_t group, const LayerSpan& layers, int32_t first_layer,
                    LayerSpan* span) const {
  if (Error error = CheckGroup(group); !error.ok()) return error;
  const auto count = static_cast<int32_t>(groups_[group].layers.size());
  *span = layers.first_layer == KVTIER_ALL_LAYERS ? LayerSpan{first_layer, count - first_layer}
                                                  : layers;
  if (span->first_layer >= 0 && span->layer_count >= 0 && span->first_layer <= count &&
      span->layer_count <= count - span->first_layer) {
    return {};
  }
  return ArgumentError(
      "layers",
      std::to_string(span->layer_count) + " from layer " + std::to_string(span->first_layer),
      "inside the " + std::to_string(count) + " layers of group " + std::to_string(group));
}

Error Plane::SwapIn(int32_t group, int32_t num_rows, const LayerSpan& layers, bool use_slots,
                    const kvtier_inputs& inputs, Stream stream) {
  LayerSpan span;
  if (Error error = SpanOf(group, layers, /*first_layer=*/0, &span); !error.ok()) return error;
  if (Error error = CheckRows(num_rows); !error.ok()) return error;
  const Group& arrays = groups_[group];
  const SwapInParams params = {
      .shape = arrays.shape,
      .state = arrays.state,
      .tracking = arrays.tracking,
      .num_rows = num_rows,
      .num_real_rows = Or(inputs.num_real_rows, arrays.step.num_real_rows),
      .row_to_request = Or(inputs.row_to_request, arrays.step.row_to_request),
      .topk = Or(inputs.topk, arrays.step.topk),
      .newest_slot = Or(inputs.newest_slot, arrays.step.newest_slot),
      .block_table = use_slots ? nullptr : block_table_,
      .sequence_lengths = sequence_lengths_,
      .hot_indices = Or(inputs.hot_indices, arrays.step.hot_indices),
      .miss_mask = Or(inputs.miss_mask, arrays.step.miss_mask),
      .valid_counts = Or(inputs.valid_counts, arrays.step.valid_counts),
      .plan = arrays.plan,
      .layers = arrays.layers.data() + span.first_layer,
      .layer_count = span.layer_count,
      .stats = arrays.stats,
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->SwapIn(params, stream);
}

Error Plane::ReplayPlan(int32_t group, int32_t num_rows, const LayerSpan& layers,
                        const kvtier_inputs& inputs, Stream stream) {
  LayerSpan span;
  if (Error error = SpanOf(group, layers, /*first_layer=*/1, &span); !error.ok()) return error;
  if (Error error = CheckRows(num_rows); !error.ok()) return error;
  const Group& arrays = groups_[group];
  const ReplayPlanParams params = {
      .shape = arrays.shape,
      .num_rows = num_rows,
      .num_real_rows = Or(inputs.num_real_rows, arrays.step.num_real_rows),
      .plan = arrays.plan,
      .state = arrays.state,
      .row_to_request = Or(inputs.row_to_request, arrays.step.row_to_request),
      .layers = arrays.layers.data() + span.first_layer,
      .layer_count = span.layer_count,
      .stats = arrays.stats,
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->ReplayPlan(params, stream);
}

Error Plane::BackupNewest(int32_t num_rows, const kvtier_inputs& inputs, Stream stream) {
  if (Error error = CheckRows(num_rows); !error.ok()) return error;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Group& arrays : groups_) {
    const BackupParams params = {
        .shape = arrays.shape,
        .state = arrays.state,
        .tracking = arrays.tracking,
        .num_rows = num_rows,
        .num_real_rows = Or(inputs.num_real_rows, arrays.step.num_real_rows),
        .row_to_request = Or(inputs.row_to_request, arrays.step.row_to_request),
        .slots = Or(inputs.newest_slot, arrays.step.newest_slot),
        .layers = arrays.layers.data(),
        .layer_count = static_cast<int32_t>(arrays.layers.size()),
        .stats = arrays.stats,
    };
    if (Error error = device_->Backup(params, stream); !error.ok()) return error;
  }
  return {};
}

Error Plane::BackupRows(int32_t group, const Sources& sources, const RowList& list, Stream stream) {
  if (Error error = CheckGroup(group); !error.ok()) return error;
  const Group& arrays = groups_[group];
  const auto layer_count = static_cast<int32_t>(arrays.layers.size());
  if (sources.layer_count != layer_count) {
    return ArgumentError("sources", std::to_string(sources.layer_count) + " tensors",
                         std::to_string(layer_count) + ", one for each layer of the group");
  }
  // On a GPU the kernel looks: out of range is skipped.
  if (device_->host_readable()) {
    if (Error error = CheckSlots(group, list.slots, list.count, kNone); !error.ok()) return error;
  }
  std::vector<const uint8_t*> rows;
  std::vector<RowLayout> layouts;
  for (int32_t l = 0; l < layer_count; ++l) {
    const kvtier_layer& source = sources.layers[l];
    Error error = CheckSource(source, arrays.layers[l].layout, sources.row_count, l);
    if (!error.ok()) return error;
    rows.push_back(static_cast<const uint8_t*>(source.hot));
    layouts.push_back(LayoutOf(source));
  }
  const BackupParams params = {
      .shape = arrays.shape,
      .state = arrays.state,
      .tracking = arrays.tracking,
      .num_rows = list.count,
      .row_to_request = list.regions,
      .slots = list.slots,
      .source_rows = list.rows,
      .sources = rows.data(),
      .source_layouts = layouts.data(),
      .source_row_count = sources.row_count,
      .layers = arrays.layers.data(),
      .layer_count = layer_count,
      .stats = arrays.stats,
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->Backup(params, stream);
}

Error Plane::MarkBacked(int32_t group, const int32_t* slots, int32_t count) {
  if (Error error = CheckGroup(group); !error.ok()) return error;
  if (Error error = CheckSlots(group, slots, count, 0); !error.ok()) return error;
  const Group& arrays = groups_[group];
  for (int32_t i = 0; i < count; ++i) {
    // C++20's atomic_ref has no const form; of the read-only mapping there are only loads.
    auto& block =
        const_cast<int32_t&>(arrays.tracking.block_generation[slots[i] / arrays.shape.block_size]);
    const int32_t generation = std::atomic_ref<int32_t>(block).load(std::memory_order_acquire);
    // Release: whoever sees the row backed sees its bytes.
    std::atomic_ref<int32_t>(arrays.tracking.backed_generation[slots[i]])
        .store(generation, std::memory_order_release);
  }
  return {};
}

Error Plane::ReadCounts(int32_t group, int64_t* counts) {
  if (Error error = CheckGroup(group); !error.ok()) return error;
  const StatsBlock* const stats = groups_[group].stats;
  Counts found;
  if (device_->host_readable()) {
    (void)kvtier::ReadCounts(stats, &found);
  } else {
    // A kernel may be adding to it while it is copied; ReadCounts says whether one was.
    StatsBlock copy;
    for (int i = 0; i < kStatsCopiesMax; ++i) {
      if (Error error = device_->Read(&copy, stats, sizeof(copy)); !error.ok()) return error;
      if (kvtier::ReadCounts(&copy, &found)) break;
    }
  }
  std::copy_n(found.values, kCounterCount, counts);
  return {};
}

Error Plane::Signal(int32_t* word, int32_t number, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->Signal(word, number, stream);
}

Error Plane::Wait(const int32_t* word, int32_t number, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->Wait(word, number, stream);
}

}  // namespace kvtier::data_plane
