#include "server/service/convert.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

absl::Status LayoutInvalid(const std::string& field, const std::string& value,
                           const std::string& limit) {
  return MakeError(absl::StatusCode::kInvalidArgument, "LAYOUT_INVALID",
                   absl::StrCat(field, " is ", value, "; it must be ", limit),
                   {{"field", field}, {"value", value}, {"limit", limit}});
}

// Fits int32 or is a value that validation refuses.
int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

absl::StatusOr<RowLayout> RowFromProto(const v1::LayerLayout& proto, int32_t block_size,
                                       const std::string& field) {
  RowLayout row;
  row.value_bytes = proto.row_bytes();
  switch (proto.row_format()) {
    case v1::ROW_FORMAT_CONTIGUOUS:
      row.format = RowFormat::kContiguous;
      row.row_stride = proto.has_row_stride_bytes() ? proto.row_stride_bytes() : proto.row_bytes();
      return row;
    case v1::ROW_FORMAT_SPLIT_PAGE: {
      row.format = RowFormat::kSplitPage;
      row.scale_bytes = proto.scale_bytes();
      row.page_rows = block_size;
      const int64_t rows = (int64_t{proto.row_bytes()} + proto.scale_bytes()) * block_size;
      row.page_bytes = proto.has_page_bytes() ? proto.page_bytes() : (rows + 15) / 16 * 16;
      return row;
    }
    default:
      return LayoutInvalid(absl::StrCat(field, ".row_format"),
                           absl::StrCat(static_cast<int>(proto.row_format())),
                           "ROW_FORMAT_CONTIGUOUS or ROW_FORMAT_SPLIT_PAGE");
  }
}

absl::Status CheckRowCount(int rows, int rows_max) {
  if (rows <= rows_max) return absl::OkStatus();
  return FieldInvalid("inline.rows", absl::StrCat(rows), absl::StrCat("at most ", rows_max),
                      "use the step buffers");
}

void BufferToProto(const ArrayExtent& extent, SegmentKind segment, v1::Buffer* proto) {
  proto->set_segment_index(static_cast<int32_t>(segment));
  proto->set_offset_bytes(extent.offset_bytes);
  proto->set_size_bytes(extent.size_bytes);
}

void GroupBuffersToProto(const CacheLayout& layout, int index, const TierGeometry& tier,
                         const HostGeometry& host, const TrackingGeometry& tracking,
                         v1::GroupBuffers* proto) {
  const GroupGeometry& group = tier.groups[index];
  for (size_t l = 0; l < group.hot.size(); ++l) {
    v1::LayerBuffers* layer = proto->add_layers();
    BufferToProto(host.layers[index][l], SegmentKind::kHostPool, layer->mutable_host());
    BufferToProto(group.hot[l], SegmentKind::kHotBuffer, layer->mutable_hot());
  }
  BufferToProto(group.owner, SegmentKind::kState, proto->mutable_owner());
  BufferToProto(group.lru, SegmentKind::kState, proto->mutable_lru());
  BufferToProto(group.stats, SegmentKind::kState, proto->mutable_stats());
  BufferToProto(group.topk, SegmentKind::kStep, proto->mutable_topk());
  BufferToProto(group.hot_indices, SegmentKind::kStep, proto->mutable_hot_indices());
  BufferToProto(group.miss_mask, SegmentKind::kStep, proto->mutable_miss_mask());
  BufferToProto(group.valid_counts, SegmentKind::kStep, proto->mutable_valid_counts());
  BufferToProto(group.plan_slots, SegmentKind::kStep, proto->mutable_plan_slots());
  BufferToProto(group.plan_hot_rows, SegmentKind::kStep, proto->mutable_plan_hot_rows());
  BufferToProto(group.plan_counts, SegmentKind::kStep, proto->mutable_plan_counts());
  BufferToProto(tracking.backed_generation[index], SegmentKind::kBackedGeneration,
                proto->mutable_backed_generation());
  proto->set_region_stride(ShapeOf(layout, index).region_stride);
}

v1::CacheBuffers BuffersToProto(const CacheLayout& layout) {
  const TierGeometry tier = TierGeometryOf(layout);
  const HostGeometry host = HostGeometryOf(layout);
  const TrackingGeometry tracking = TrackingGeometryOf(layout);
  v1::CacheBuffers proto;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    GroupBuffersToProto(layout, static_cast<int>(g), tier, host, tracking, proto.add_groups());
  }
  BufferToProto(tier.block_table, SegmentKind::kState, proto.mutable_block_table());
  BufferToProto(tier.sequence_lengths, SegmentKind::kState, proto.mutable_sequence_lengths());
  BufferToProto(tracking.block_generation, SegmentKind::kBlockGeneration,
                proto.mutable_block_generation());
  BufferToProto(tier.row_to_request, SegmentKind::kStep, proto.mutable_row_to_request());
  BufferToProto(tier.newest_slot, SegmentKind::kStep, proto.mutable_newest_slot());
  BufferToProto(tier.num_real_rows, SegmentKind::kStep, proto.mutable_num_real_rows());
  return proto;
}

std::optional<LayerRange> LayersFromProto(bool present, const v1::LayerRange& proto) {
  if (!present) return std::nullopt;
  return LayerRange{proto.first_layer(), proto.layer_count()};
}

}  // namespace

absl::StatusOr<CacheLayout> LayoutFromProto(const v1::CacheLayout& proto) {
  CacheLayout layout;
  layout.block_size = proto.has_block_size() ? proto.block_size() : 64;
  layout.block_count = proto.block_count();
  // slot_count() multiplies: keep it in range before anybody asks.
  if (layout.block_size < 1 || layout.block_count < 1 ||
      int64_t{layout.block_size} * layout.block_count > INT32_MAX) {
    return LayoutInvalid("block_size * block_count",
                         absl::StrCat(int64_t{layout.block_size} * layout.block_count),
                         "1..2147483647, both positive");
  }
  layout.max_requests = proto.max_requests();
  layout.rows_per_request = proto.has_rows_per_request() ? proto.rows_per_request() : 1;
  layout.max_blocks_per_request = proto.has_max_blocks_per_request()
                                      ? proto.max_blocks_per_request()
                                      : layout.block_count;
  layout.step_rows =
      proto.has_step_rows()
          ? proto.step_rows()
          : std::min(Clamped(int64_t{layout.max_requests} * layout.rows_per_request), kStepRowsMax);
  layout.dtype_tag = proto.dtype_tag();
  for (int g = 0; g < proto.groups_size(); ++g) {
    const v1::LayerGroupLayout& from = proto.groups(g);
    GroupLayout& group = layout.groups.emplace_back();
    group.top_k = from.top_k();
    group.hot_size = from.has_hot_size()
                         ? from.hot_size()
                         : Clamped(std::clamp<int64_t>(int64_t{2} * from.top_k(), 1, kHotSizeMax));
    for (int l = 0; l < from.layers_size(); ++l) {
      KVTIER_ASSIGN_OR_RETURN(const RowLayout row,
                              RowFromProto(from.layers(l), layout.block_size,
                                           absl::StrCat("groups[", g, "].layers[", l, "]")));
      group.layers.push_back(row);
    }
  }
  return layout;
}

v1::CacheLayout LayoutToProto(const CacheLayout& layout) {
  v1::CacheLayout proto;
  for (const GroupLayout& group : layout.groups) {
    v1::LayerGroupLayout* to = proto.add_groups();
    to->set_top_k(group.top_k);
    to->set_hot_size(group.hot_size);
    for (const RowLayout& row : group.layers) {
      v1::LayerLayout* layer = to->add_layers();
      layer->set_row_bytes(row.value_bytes);
      if (row.format == RowFormat::kContiguous) {
        layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
        layer->set_row_stride_bytes(static_cast<int32_t>(row.row_stride));
      } else {
        layer->set_row_format(v1::ROW_FORMAT_SPLIT_PAGE);
        layer->set_scale_bytes(row.scale_bytes);
        layer->set_page_bytes(static_cast<int32_t>(row.page_bytes));
      }
    }
  }
  proto.set_block_size(layout.block_size);
  proto.set_block_count(layout.block_count);
  proto.set_max_requests(layout.max_requests);
  proto.set_rows_per_request(layout.rows_per_request);
  proto.set_max_blocks_per_request(layout.max_blocks_per_request);
  proto.set_step_rows(layout.step_rows);
  proto.set_dtype_tag(layout.dtype_tag);
  return proto;
}

v1::Device DeviceToProto(const DeviceInfo& device) {
  v1::Device proto;
  proto.set_uuid(device.uuid);
  proto.set_name(device.name);
  proto.set_backend(device.kind == BackendKind::kCuda ? "cuda" : "cpu");
  proto.set_memory_bytes(device.memory_bytes);
  return proto;
}

v1::AttachCacheResponse AttachToProto(const AttachResult& result) {
  v1::AttachCacheResponse proto;
  *proto.mutable_layout() = LayoutToProto(result.layout);
  proto.set_created(result.created);
  *proto.mutable_device() = DeviceToProto(result.device);
  for (const SegmentInfo& segment : result.segments) {
    v1::Segment* to = proto.add_segments();
    to->set_segment_index(static_cast<int32_t>(segment.kind));
    to->set_kind(static_cast<v1::SegmentKind>(static_cast<int>(segment.kind) + 1));
    to->set_transport(segment.transport == MemoryHandle::Transport::kPosixFd
                          ? v1::SEGMENT_TRANSPORT_POSIX_FD
                          : v1::SEGMENT_TRANSPORT_CUDA_IPC);
    to->set_size_bytes(segment.size_bytes);
    to->set_offset_bytes(segment.offset_bytes);
    to->set_fd_token(segment.fd_token);
    to->set_ipc_handle(segment.ipc_handle);
    to->set_read_only(segment.read_only);
  }
  *proto.mutable_buffers() = BuffersToProto(result.layout);
  return proto;
}

absl::StatusOr<SwapInCall> SwapInFromProto(const v1::SwapInRequest& proto) {
  SwapInCall call;
  call.cache = proto.cache();
  call.group = proto.group_index();
  call.use_slots = proto.use_slots();
  call.layers = LayersFromProto(proto.has_layers(), proto.layers());
  switch (proto.input_case()) {
    case v1::SwapInRequest::kStep:
      call.step_rows = proto.step().num_rows();
      return call;
    case v1::SwapInRequest::kInline: {
      KVTIER_RETURN_IF_ERROR(CheckRowCount(proto.inline_().rows_size(), kInlineRowsMax));
      std::vector<InlineSwapInRow>& rows = call.inline_rows.emplace();
      for (const v1::SwapInRow& row : proto.inline_().rows()) {
        rows.push_back({.request_id = row.request_id(),
                        .topk = {row.topk().begin(), row.topk().end()},
                        .newest_slot = row.has_newest_slot() ? row.newest_slot() : kNone});
      }
      return call;
    }
    default:
      return FieldInvalid("input", "missing", "step or inline");
  }
}

absl::StatusOr<BackupCall> BackupFromProto(const v1::BackupRequest& proto) {
  BackupCall call;
  call.cache = proto.cache();
  switch (proto.input_case()) {
    case v1::BackupRequest::kStep:
      call.step_rows = proto.step().num_rows();
      return call;
    case v1::BackupRequest::kInline: {
      KVTIER_RETURN_IF_ERROR(CheckRowCount(proto.inline_().rows_size(), kInlineBackupRowsMax));
      std::vector<InlineBackupRow>& rows = call.inline_rows.emplace();
      for (const v1::BackupRow& row : proto.inline_().rows()) {
        InlineBackupRow& to = rows.emplace_back();
        to.request_id = row.request_id();
        to.slot = row.slot();
        if (row.has_source_hot_row()) to.source_hot_row = row.source_hot_row();
      }
      return call;
    }
    case v1::BackupRequest::kTensor:
      return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                       "backup of another process's device tensor is not implemented; the client "
                       "library backs up tensors in the worker's own process",
                       {{"feature", "Backup.tensor"}});
    default:
      return FieldInvalid("input", "missing", "step or inline");
  }
}

ReplayPlanCall ReplayPlanFromProto(const v1::ReplayPlanRequest& proto) {
  return {.cache = proto.cache(),
          .group = proto.group_index(),
          .layers = LayersFromProto(proto.has_layers(), proto.layers()),
          .num_rows = proto.num_rows()};
}

v1::SwapInResponse SwapInToProto(const OperationOutcome& outcome) {
  v1::SwapInResponse proto;
  proto.set_ticket(outcome.ticket);
  proto.set_completed(true);
  for (const SwapInRowOutput& row : outcome.rows) {
    v1::SwapInRowResult* to = proto.add_rows();
    to->mutable_hot_indices()->Add(row.hot_indices.begin(), row.hot_indices.end());
    to->mutable_miss_mask()->Add(row.miss_mask.begin(), row.miss_mask.end());
    to->set_valid_count(row.valid_count);
    to->mutable_plan_slots()->Add(row.plan_slots.begin(), row.plan_slots.end());
    to->mutable_plan_hot_rows()->Add(row.plan_hot_rows.begin(), row.plan_hot_rows.end());
  }
  return proto;
}

}  // namespace kvtier
