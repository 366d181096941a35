#include "server/service/to_proto.h"

#include <cstdint>
#include <vector>

namespace kvtier {
namespace {

v1::SegmentKind KindOf(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kHostPool:
      return v1::SEGMENT_KIND_HOST_POOL;
    case SegmentKind::kBlockGeneration:
      return v1::SEGMENT_KIND_BLOCK_GENERATION;
    case SegmentKind::kBackedGeneration:
      return v1::SEGMENT_KIND_BACKED_GENERATION;
    case SegmentKind::kHotBuffer:
      return v1::SEGMENT_KIND_HOT_BUFFER;
    case SegmentKind::kState:
      return v1::SEGMENT_KIND_STATE;
    case SegmentKind::kStep:
      return v1::SEGMENT_KIND_STEP;
    case SegmentKind::kProgress:
      return v1::SEGMENT_KIND_PROGRESS;
  }
  return v1::SEGMENT_KIND_UNSPECIFIED;
}

v1::SegmentTransport TransportOf(MemoryHandle::Transport transport) {
  switch (transport) {
    case MemoryHandle::Transport::kPosixFd:
      return v1::SEGMENT_TRANSPORT_POSIX_FD;
    case MemoryHandle::Transport::kCudaFd:
      return v1::SEGMENT_TRANSPORT_CUDA_FD;
    case MemoryHandle::Transport::kCudaIpc:
      return v1::SEGMENT_TRANSPORT_CUDA_IPC;
  }
  return v1::SEGMENT_TRANSPORT_UNSPECIFIED;
}

void AddRow(const RowLayout& row, v1::LayerLayout* to) {
  to->set_row_bytes(row.value_bytes);
  if (row.format == RowFormat::kContiguous) {
    to->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
    to->set_row_stride_bytes(static_cast<int32_t>(row.row_stride));
    return;
  }
  to->set_row_format(v1::ROW_FORMAT_SPLIT_PAGE);
  to->set_scale_bytes(row.scale_bytes);
  to->set_page_bytes(static_cast<int32_t>(row.page_bytes));
}

v1::Segment SegmentToProto(const SegmentInfo& from, int32_t index) {
  v1::Segment segment;
  segment.set_segment_index(index);
  segment.set_kind(KindOf(from.kind));
  segment.set_transport(TransportOf(from.transport));
  segment.set_size_bytes(from.size_bytes);
  segment.set_offset_bytes(from.offset_bytes);
  segment.set_fd_token(from.fd_token);
  segment.set_ipc_handle(from.ipc_handle);
  segment.set_read_only(from.read_only);
  segment.set_unsealed(!from.sealed);
  return segment;
}

// Says in which segment of an answer an array lies.
class Arrays {
 public:
  explicit Arrays(const std::vector<SegmentInfo>& segments) : segments_(segments) {}

  v1::Buffer In(SegmentKind kind, const ArrayExtent& extent) const {
    v1::Buffer buffer;
    buffer.set_segment_index(IndexOf(kind));
    buffer.set_offset_bytes(extent.offset_bytes);
    buffer.set_size_bytes(extent.size_bytes);
    return buffer;
  }

 private:
  int32_t IndexOf(SegmentKind kind) const {
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].kind == kind) return static_cast<int32_t>(i);
    }
    return -1;  // a client cannot take it for another segment
  }

  const std::vector<SegmentInfo>& segments_;
};

void FillGroup(const GroupGeometry& from, const std::vector<ArrayExtent>& host,
               const ArrayExtent& backed, const Arrays& arrays, v1::GroupBuffers* to) {
  for (size_t layer = 0; layer < from.hot.size(); ++layer) {
    v1::LayerBuffers* buffers = to->add_layers();
    *buffers->mutable_host() = arrays.In(SegmentKind::kHostPool, host[layer]);
    *buffers->mutable_hot() = arrays.In(SegmentKind::kHotBuffer, from.hot[layer]);
  }
  *to->mutable_owner() = arrays.In(SegmentKind::kState, from.owner);
  *to->mutable_lru() = arrays.In(SegmentKind::kState, from.lru);
  *to->mutable_index() = arrays.In(SegmentKind::kState, from.index);
  *to->mutable_score() = arrays.In(SegmentKind::kState, from.score);
  *to->mutable_kept() = arrays.In(SegmentKind::kState, from.kept);
  *to->mutable_directory() = arrays.In(SegmentKind::kState, from.directory);
  *to->mutable_stats() = arrays.In(SegmentKind::kState, from.stats);
  *to->mutable_topk() = arrays.In(SegmentKind::kStep, from.topk);
  *to->mutable_hot_indices() = arrays.In(SegmentKind::kStep, from.hot_indices);
  *to->mutable_miss_mask() = arrays.In(SegmentKind::kStep, from.miss_mask);
  *to->mutable_valid_counts() = arrays.In(SegmentKind::kStep, from.valid_counts);
  *to->mutable_plan_slots() = arrays.In(SegmentKind::kStep, from.plan_slots);
  *to->mutable_plan_hot_rows() = arrays.In(SegmentKind::kStep, from.plan_hot_rows);
  *to->mutable_plan_counts() = arrays.In(SegmentKind::kStep, from.plan_counts);
  *to->mutable_backed_generation() = arrays.In(SegmentKind::kBackedGeneration, backed);
}

v1::CacheBuffers BuffersOf(const CacheLayout& layout, const Arrays& arrays) {
  const HostGeometry host = HostGeometryOf(layout);
  const TierGeometry tier = TierGeometryOf(layout);
  const TrackingGeometry tracking = TrackingGeometryOf(layout);
  v1::CacheBuffers buffers;
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    v1::GroupBuffers* to = buffers.add_groups();
    FillGroup(tier.groups[group], host.layers[group], tracking.backed_generation[group], arrays,
              to);
    to->set_region_stride(RegionStrideOf(layout, static_cast<int>(group)));
  }
  *buffers.mutable_block_table() = arrays.In(SegmentKind::kState, tier.block_table);
  *buffers.mutable_sequence_lengths() = arrays.In(SegmentKind::kState, tier.sequence_lengths);
  *buffers.mutable_block_generation() =
      arrays.In(SegmentKind::kBlockGeneration, tracking.block_generation);
  *buffers.mutable_row_to_request() = arrays.In(SegmentKind::kStep, tier.row_to_request);
  *buffers.mutable_newest_slot() = arrays.In(SegmentKind::kStep, tier.newest_slot);
  *buffers.mutable_num_real_rows() = arrays.In(SegmentKind::kStep, tier.num_real_rows);
  *buffers.mutable_progress() = arrays.In(SegmentKind::kProgress, {0, 2 * sizeof(int32_t)});
  return buffers;
}

}  // namespace

std::string BackendName(BackendKind kind) { return kind == BackendKind::kCuda ? "cuda" : "cpu"; }

v1::Device ToProto(const DeviceInfo& device) {
  v1::Device to;
  to.set_uuid(device.uuid);
  to.set_name(device.name);
  to.set_backend(BackendName(device.kind));
  to.set_memory_bytes(device.memory_bytes);
  return to;
}

v1::CacheLayout ToProto(const CacheLayout& layout) {
  v1::CacheLayout to;
  for (const GroupLayout& group : layout.groups) {
    v1::LayerGroupLayout* to_group = to.add_groups();
    to_group->set_top_k(group.top_k);
    to_group->set_hot_size(group.hot_size);
    for (const RowLayout& row : group.layers) AddRow(row, to_group->add_layers());
  }
  to.set_block_size(layout.block_size);
  to.set_block_count(layout.block_count);
  to.set_max_requests(layout.max_requests);
  to.set_rows_per_request(layout.rows_per_request);
  to.set_max_blocks_per_request(layout.max_blocks_per_request);
  to.set_step_rows(layout.step_rows);
  to.set_dtype_tag(layout.dtype_tag);
  to.set_eviction_policy(layout.eviction_policy == EvictionPolicy::kAged ? v1::EVICTION_POLICY_AGED
                                                                         : v1::EVICTION_POLICY_LRU);
  to.set_share_rows(layout.share_rows);
  return to;
}

v1::AttachCacheResponse ToProto(const AttachResult& result) {
  v1::AttachCacheResponse to;
  *to.mutable_layout() = ToProto(result.layout);
  to.set_created(result.created);
  to.set_blocks_kept(result.blocks_kept);
  *to.mutable_device() = ToProto(result.device);
  for (size_t i = 0; i < result.segments.size(); ++i) {
    *to.add_segments() = SegmentToProto(result.segments[i], static_cast<int32_t>(i));
  }
  *to.mutable_buffers() = BuffersOf(result.layout, Arrays(result.segments));
  return to;
}

v1::AssignBlocksResponse ToProto(const AssignResult& result) {
  v1::AssignBlocksResponse to;
  to.mutable_block_ids()->Add(result.block_ids.begin(), result.block_ids.end());
  to.mutable_generations()->Add(result.generations.begin(), result.generations.end());
  to.set_table_index(result.table_index);
  to.set_invalidated_copies(result.invalidated_copies);
  return to;
}

v1::SwapInResponse SwapInToProto(const OperationOutcome& outcome) {
  v1::SwapInResponse to;
  to.set_ticket(outcome.ticket);
  to.set_completed(true);
  for (const SwapInRowOutput& row : outcome.rows) {
    v1::SwapInRowResult* result = to.add_rows();
    result->mutable_hot_indices()->Add(row.hot_indices.begin(), row.hot_indices.end());
    result->mutable_miss_mask()->Add(row.miss_mask.begin(), row.miss_mask.end());
    result->set_valid_count(row.valid_count);
    result->mutable_plan_slots()->Add(row.plan_slots.begin(), row.plan_slots.end());
    result->mutable_plan_hot_rows()->Add(row.plan_hot_rows.begin(), row.plan_hot_rows.end());
  }
  return to;
}

}  // namespace kvtier
