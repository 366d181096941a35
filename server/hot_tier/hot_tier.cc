#include "server/hot_tier/hot_tier.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/stats_block.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Initial values are written in pieces of about this size: each is copied once on its way.
constexpr int64_t kFillBytes = int64_t{1} << 20;

// Repeats `pattern` over [destination, destination + bytes); `bytes` is a multiple of its size.
template <typename T>
absl::Status Fill(DeviceStream* stream, T* destination, int64_t bytes,
                  const std::vector<T>& pattern) {
  const int64_t pattern_bytes = static_cast<int64_t>(pattern.size() * sizeof(T));
  const int64_t repetitions = std::clamp<int64_t>(kFillBytes / pattern_bytes, 1,
                                                  std::max<int64_t>(bytes / pattern_bytes, 1));
  std::vector<T> piece;
  piece.reserve(pattern.size() * repetitions);
  for (int64_t i = 0; i < repetitions; ++i) {
    piece.insert(piece.end(), pattern.begin(), pattern.end());
  }
  const int64_t piece_bytes = pattern_bytes * repetitions;
  uint8_t* const to = reinterpret_cast<uint8_t*>(destination);
  for (int64_t done = 0; done < bytes; done += piece_bytes) {
    KVTIER_RETURN_IF_ERROR(
        stream->Write(to + done, piece.data(), std::min(piece_bytes, bytes - done)));
  }
  return absl::OkStatus();
}

}  // namespace

HotTier::HotTier(const CacheLayout& layout, const HostView& host)
    : layout_(layout),
      host_(host),
      host_geometry_(HostGeometryOf(layout)),
      tracking_(TrackingGeometryOf(layout)),
      geometry_(TierGeometryOf(layout)) {
  for (size_t i = 0; i < layout.groups.size(); ++i) {
    shapes_.push_back(ShapeOf(layout, static_cast<int>(i)));
  }
}

absl::StatusOr<std::unique_ptr<HotTier>> HotTier::Create(const CacheLayout& layout,
                                                         const HostView& host,
                                                         absl::string_view device_uuid,
                                                         DeviceBackend* backend) {
  std::unique_ptr<HotTier> tier(new HotTier(layout, host));
  KVTIER_ASSIGN_OR_RETURN(tier->hot_,
                          backend->Allocate(device_uuid, "hot", tier->geometry_.hot_bytes));
  KVTIER_ASSIGN_OR_RETURN(tier->state_,
                          backend->Allocate(device_uuid, "state", tier->geometry_.state_bytes));
  KVTIER_ASSIGN_OR_RETURN(tier->step_,
                          backend->Allocate(device_uuid, "step", tier->geometry_.step_bytes));
  tier->PlaceLayers();
  return tier;
}

void HotTier::PlaceLayers() {
  for (size_t g = 0; g < shapes_.size(); ++g) {
    std::vector<LayerView>& views = layers_.emplace_back();
    for (size_t l = 0; l < layout_.groups[g].layers.size(); ++l) {
      views.push_back({.host = host_.rows + host_geometry_.layers[g][l].offset_bytes,
                       .hot = hot_->data() + geometry_.groups[g].hot[l].offset_bytes,
                       .layout = layout_.groups[g].layers[l]});
    }
  }
}

absl::Status HotTier::EnqueueInitialState(DeviceStream* stream) const {
  const std::vector<int32_t> none = {kNone};
  const auto fill_none = [&](int32_t* array, const ArrayExtent& extent) {
    return Fill(stream, array, extent.size_bytes, none);
  };
  for (size_t g = 0; g < shapes_.size(); ++g) {
    const GroupGeometry& group = geometry_.groups[g];
    KVTIER_RETURN_IF_ERROR(fill_none(InState<int32_t>(group.owner), group.owner));
    KVTIER_RETURN_IF_ERROR(fill_none(InState<int32_t>(group.kept), group.kept));
    std::vector<int16_t> order(shapes_[g].hot_size);
    std::iota(order.begin(), order.end(), int16_t{0});
    KVTIER_RETURN_IF_ERROR(Fill(stream, InState<int16_t>(group.lru), group.lru.size_bytes, order));
  }
  KVTIER_RETURN_IF_ERROR(fill_none(InState<int32_t>(geometry_.block_table), geometry_.block_table));
  KVTIER_RETURN_IF_ERROR(
      fill_none(InState<int32_t>(geometry_.sequence_lengths), geometry_.sequence_lengths));
  // Rows of the step buffers name nobody until the worker has written them; num_real_rows, the
  // indices and directories (which know nothing then), scores and statistics are zero as allocated.
  KVTIER_RETURN_IF_ERROR(fill_none(InStep(geometry_.row_to_request), geometry_.row_to_request));
  return fill_none(InStep(geometry_.newest_slot), geometry_.newest_slot);
}

absl::Status HotTier::EnqueueResetRegion(DeviceStream* stream, int32_t region) const {
  for (int g = 0; g < group_count(); ++g) {
    KVTIER_RETURN_IF_ERROR(
        stream->ResetRegion({.shape = shapes_[g], .state = StateOf(g), .region = region}));
  }
  const int32_t unknown = kNone;
  int32_t* const length = InState<int32_t>(geometry_.sequence_lengths) + region;
  return stream->Write(reinterpret_cast<uint8_t*>(length), &unknown, sizeof(unknown));
}

absl::Status HotTier::EnqueueTableWrite(DeviceStream* stream, int32_t region, int32_t first_entry,
                                        const std::vector<int32_t>& block_ids) const {
  int32_t* const entries = InState<int32_t>(geometry_.block_table) +
                           int64_t{region} * layout_.max_blocks_per_request + first_entry;
  return stream->Write(reinterpret_cast<uint8_t*>(entries), block_ids.data(),
                       static_cast<int64_t>(block_ids.size() * sizeof(int32_t)));
}

absl::Status HotTier::EnqueueInvalidate(DeviceStream* stream, int group, int32_t region_count,
                                        const std::vector<int32_t>& blocks, int64_t* before,
                                        int64_t* after) const {
  GroupShape shape = shapes_[group];
  shape.region_count = region_count;
  const uint8_t* const counter = reinterpret_cast<const uint8_t*>(
      &StatsOf(group)->counts[static_cast<int32_t>(Counter::kInvalidatedCopies)]);
  KVTIER_RETURN_IF_ERROR(stream->Read(before, counter, sizeof(*before)));
  KVTIER_RETURN_IF_ERROR(stream->Invalidate({.shape = shape,
                                             .state = StateOf(group),
                                             .blocks = blocks.data(),
                                             .block_count = static_cast<int32_t>(blocks.size()),
                                             .stats = StatsOf(group)}));
  return stream->Read(after, counter, sizeof(*after));
}

absl::Status HotTier::EnqueueReadStats(DeviceStream* stream, int group, StatsBlock* block) const {
  return stream->Read(block, reinterpret_cast<const uint8_t*>(StatsOf(group)), sizeof(*block));
}

StepArrays HotTier::StepBuffers(int group, int32_t num_rows) const {
  const GroupGeometry& g = geometry_.groups[group];
  StepArrays arrays;
  arrays.num_rows = num_rows;
  arrays.num_real_rows = InStep(geometry_.num_real_rows);
  arrays.row_to_request = InStep(geometry_.row_to_request);
  arrays.newest_slot = InStep(geometry_.newest_slot);
  arrays.topk = InStep(g.topk);
  arrays.hot_indices = InStep(g.hot_indices);
  arrays.miss_mask = InStep(g.miss_mask);
  arrays.valid_counts = InStep(g.valid_counts);
  arrays.plan_slots = InStep(g.plan_slots);
  arrays.plan_hot_rows = InStep(g.plan_hot_rows);
  arrays.plan_counts = InStep(g.plan_counts);
  return arrays;
}

BackupArrays HotTier::StepBufferBackup(int32_t num_rows) const {
  return {.num_rows = num_rows,
          .num_real_rows = InStep(geometry_.num_real_rows),
          .row_to_request = InStep(geometry_.row_to_request),
          .slots = InStep(geometry_.newest_slot)};
}

SwapInParams HotTier::MakeSwapIn(int group, const StepArrays& arrays, LayerSpan layers,
                                 bool use_slots) const {
  SwapInParams params;
  params.shape = shapes_[group];
  params.state = StateOf(group);
  params.tracking = TrackingOf(group);
  params.num_rows = arrays.num_rows;
  params.num_real_rows = arrays.num_real_rows;
  params.row_to_request = arrays.row_to_request;
  params.topk = arrays.topk;
  params.newest_slot = arrays.newest_slot;
  if (!use_slots) {
    params.block_table = InState<int32_t>(geometry_.block_table);
    params.sequence_lengths = InState<int32_t>(geometry_.sequence_lengths);
  }
  params.hot_indices = arrays.hot_indices;
  params.miss_mask = arrays.miss_mask;
  params.valid_counts = arrays.valid_counts;
  params.plan = {arrays.plan_slots, arrays.plan_hot_rows, arrays.plan_counts};
  params.layers = layers_[group].data() + layers.first;
  params.layer_count = layers.count;
  params.stats = StatsOf(group);
  return params;
}

ReplayPlanParams HotTier::MakeReplayPlan(int group, int32_t num_rows, LayerSpan layers) const {
  const StepArrays arrays = StepBuffers(group, num_rows);
  ReplayPlanParams params;
  params.shape = shapes_[group];
  params.state = StateOf(group);
  params.num_rows = num_rows;
  params.num_real_rows = arrays.num_real_rows;
  params.row_to_request = arrays.row_to_request;
  params.plan = {arrays.plan_slots, arrays.plan_hot_rows, arrays.plan_counts};
  params.layers = layers_[group].data() + layers.first;
  params.layer_count = layers.count;
  params.stats = StatsOf(group);
  return params;
}

BackupParams HotTier::MakeBackup(int group, const BackupArrays& arrays) const {
  BackupParams params;
  params.shape = shapes_[group];
  params.state = StateOf(group);
  params.tracking = TrackingOf(group);
  params.num_rows = arrays.num_rows;
  params.num_real_rows = arrays.num_real_rows;
  params.row_to_request = arrays.row_to_request;
  params.slots = arrays.slots;
  params.source_rows = arrays.source_rows;
  params.layers = layers_[group].data();
  params.layer_count = LayerCount(group);
  params.stats = StatsOf(group);
  return params;
}

Counts HotTier::ReadCounts(int group) const {
  Counts counts;
  // A moment that could not be had leaves each number right by itself: good enough to show.
  kvtier::ReadCounts(StatsOf(group), &counts);
  return counts;
}

int64_t HotTier::device_bytes() const {
  return hot_->size_bytes() + state_->size_bytes() + step_->size_bytes();
}

GroupState HotTier::StateOf(int group) const {
  const GroupGeometry& arrays = geometry_.groups[group];
  GroupState state = {.owner = InState<int32_t>(arrays.owner), .lru = InState<int16_t>(arrays.lru)};
  if (arrays.index.size_bytes > 0) state.index = InState<uint16_t>(arrays.index);
  if (arrays.score.size_bytes > 0) state.score = InState<uint8_t>(arrays.score);
  if (arrays.directory.size_bytes > 0) state.directory = InState<int32_t>(arrays.directory);
  if (arrays.kept.size_bytes > 0) state.kept = InState<int32_t>(arrays.kept);
  return state;
}

RowTracking HotTier::TrackingOf(int group) const {
  return {host_.block_generation,
          reinterpret_cast<int32_t*>(host_.backed_generation +
                                     tracking_.backed_generation[group].offset_bytes)};
}

StatsBlock* HotTier::StatsOf(int group) const {
  return InState<StatsBlock>(geometry_.groups[group].stats);
}

template <typename T>
T* HotTier::InState(const ArrayExtent& extent) const {
  return reinterpret_cast<T*>(state_->data() + extent.offset_bytes);
}

int32_t* HotTier::InStep(const ArrayExtent& extent) const {
  return reinterpret_cast<int32_t*>(step_->data() + extent.offset_bytes);
}

}  // namespace kvtier
