#include "client/testing/fake_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/cache_shape.h"
#include "gtest/gtest.h"
#include "kernels/counters.h"
#include "kernels/layout.h"
#include "kernels/region_index.h"

namespace kvtier::client {
namespace {

constexpr int64_t kArrayAlignment = 256;
constexpr int kUsualSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

void FillDefaults(v1::CacheLayout* layout) {
  if (layout->eviction_policy() == v1::EVICTION_POLICY_UNSPECIFIED) {
    layout->set_eviction_policy(v1::EVICTION_POLICY_LRU);
  }
  if (!layout->has_block_size()) layout->set_block_size(64);
  if (!layout->has_rows_per_request()) layout->set_rows_per_request(1);
  if (!layout->has_max_blocks_per_request()) {
    layout->set_max_blocks_per_request(layout->block_count());
  }
  if (!layout->has_step_rows()) {
    layout->set_step_rows(layout->max_requests() * layout->rows_per_request());
  }
  for (v1::LayerGroupLayout& group : *layout->mutable_groups()) {
    if (!group.has_hot_size()) group.set_hot_size(std::max(1, 2 * group.top_k()));
    for (v1::LayerLayout& layer : *group.mutable_layers()) {
      if (layer.row_format() == v1::ROW_FORMAT_CONTIGUOUS) {
        if (!layer.has_row_stride_bytes()) layer.set_row_stride_bytes(layer.row_bytes());
      } else if (!layer.has_page_bytes()) {
        const int bytes = layout->block_size() * (layer.row_bytes() + layer.scale_bytes());
        layer.set_page_bytes((bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment);
      }
    }
  }
}

int MakeDescriptor(int64_t bytes, int seals) {
  const int fd = memfd_create("kvtier-fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(ftruncate(fd, bytes), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

}  // namespace

v1::CacheLayout SmallLayout() {
  v1::CacheLayout layout;
  v1::LayerGroupLayout* group = layout.add_groups();
  group->set_top_k(8);
  for (const int row_bytes : {32, 48}) {
    v1::LayerLayout* layer = group->add_layers();
    layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
    layer->set_row_bytes(row_bytes);
  }
  group = layout.add_groups();
  group->set_top_k(8);
  v1::LayerLayout* layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_SPLIT_PAGE);
  layer->set_row_bytes(32);
  layer->set_scale_bytes(4);
  layout.set_block_size(4);
  layout.set_block_count(8);
  layout.set_max_requests(2);
  layout.set_dtype_tag("test");
  return layout;
}

FakeCache::FakeCache(v1::CacheLayout layout) {
  FillDefaults(&layout);
  *answer_.mutable_layout() = layout;
  answer_.set_created(true);
  answer_.mutable_device()->set_uuid("CPU-0");
  answer_.mutable_device()->set_backend("cpu");
  for (int kind = v1::SEGMENT_KIND_HOST_POOL; kind <= v1::SEGMENT_KIND_PROGRESS; ++kind) {
    v1::Segment* segment = answer_.add_segments();
    segment->set_segment_index(kind - 1);
    segment->set_kind(static_cast<v1::SegmentKind>(kind));
    segment->set_transport(v1::SEGMENT_TRANSPORT_POSIX_FD);
    segment->set_fd_token(absl::StrCat("token-", kind - 1));
    segment->set_read_only(kind == v1::SEGMENT_KIND_BLOCK_GENERATION);
  }
  v1::CacheBuffers* buffers = answer_.mutable_buffers();
  const int64_t requests = layout.max_requests();
  const int64_t rows = layout.step_rows();
  for (int g = 0; g < layout.groups_size(); ++g) PlaceGroup(g);
  Place(v1::SEGMENT_KIND_STATE, requests * layout.max_blocks_per_request() * 4,
        buffers->mutable_block_table());
  Place(v1::SEGMENT_KIND_STATE, requests * 4, buffers->mutable_sequence_lengths());
  Place(v1::SEGMENT_KIND_BLOCK_GENERATION, int64_t{layout.block_count()} * 4,
        buffers->mutable_block_generation());
  Place(v1::SEGMENT_KIND_STEP, rows * 4, buffers->mutable_row_to_request());
  Place(v1::SEGMENT_KIND_STEP, rows * 4, buffers->mutable_newest_slot());
  Place(v1::SEGMENT_KIND_STEP, 4, buffers->mutable_num_real_rows());
  Place(v1::SEGMENT_KIND_PROGRESS, 8, buffers->mutable_progress());
  MakeMemory();
  FillState();
}

FakeCache::~FakeCache() {
  for (const auto& [index, memory] : memories_) {
    munmap(memory.data, memory.bytes);
    close(memory.fd);
  }
}

void FakeCache::PlaceGroup(int group) {
  const absl::StatusOr<CacheShape> cache = CacheShapeOf(answer_.layout());
  ASSERT_TRUE(cache.ok()) << cache.status();
  const GroupShape& shape = cache->groups[group].shape;
  v1::GroupBuffers* buffers = answer_.mutable_buffers()->add_groups();
  for (const RowLayout& layout : cache->groups[group].layers) {
    v1::LayerBuffers* layer = buffers->add_layers();
    Place(v1::SEGMENT_KIND_HOST_POOL, StorageBytes(layout, shape.slot_count),
          layer->mutable_host());
    Place(v1::SEGMENT_KIND_HOT_BUFFER,
          StorageBytes(layout, shape.region_count * shape.region_stride), layer->mutable_hot());
  }
  const int64_t hot_slots = int64_t{shape.region_count} * shape.hot_size;
  const int64_t index_words = int64_t{shape.region_count} * RegionIndexLength(shape.hot_size);
  const int64_t positions = int64_t{cache->step_rows} * shape.top_k;
  Place(v1::SEGMENT_KIND_STATE, hot_slots * 4, buffers->mutable_owner());
  Place(v1::SEGMENT_KIND_STATE, hot_slots * 2, buffers->mutable_lru());
  Place(v1::SEGMENT_KIND_STATE, index_words * 2, buffers->mutable_index());
  const bool has_scores = shape.policy == EvictionPolicy::kAged;
  Place(v1::SEGMENT_KIND_STATE, has_scores ? hot_slots : 0, buffers->mutable_score());
  const bool has_directory = answer_.layout().share_rows();
  Place(v1::SEGMENT_KIND_STATE, has_directory ? int64_t{shape.slot_count} * 8 : 0,
        buffers->mutable_directory());
  const int64_t notes = int64_t{shape.region_count} * shape.rows_per_request;
  Place(v1::SEGMENT_KIND_STATE, has_scores ? notes * 4 : 0, buffers->mutable_kept());
  Place(v1::SEGMENT_KIND_STATE, sizeof(StatsBlock), buffers->mutable_stats());
  for (v1::Buffer* buffer :
       {buffers->mutable_topk(), buffers->mutable_hot_indices(), buffers->mutable_miss_mask(),
        buffers->mutable_plan_slots(), buffers->mutable_plan_hot_rows()}) {
    Place(v1::SEGMENT_KIND_STEP, positions * 4, buffer);
  }
  Place(v1::SEGMENT_KIND_STEP, int64_t{cache->step_rows} * 4, buffers->mutable_valid_counts());
  Place(v1::SEGMENT_KIND_STEP, int64_t{cache->step_rows} * 4, buffers->mutable_plan_counts());
  Place(v1::SEGMENT_KIND_BACKED_GENERATION, int64_t{shape.slot_count} * 4,
        buffers->mutable_backed_generation());
  buffers->set_region_stride(shape.region_stride);
}

// Appends an array to the segment of `kind`.
void FakeCache::Place(v1::SegmentKind kind, int64_t bytes, v1::Buffer* buffer) {
  v1::Segment* segment = answer_.mutable_segments(kind - 1);
  buffer->set_segment_index(kind - 1);
  buffer->set_offset_bytes(segment->size_bytes());
  buffer->set_size_bytes(bytes);
  const int64_t end = segment->size_bytes() + bytes;
  segment->set_size_bytes((end + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment);
}

void FakeCache::MakeMemory() {
  for (const v1::Segment& segment : answer_.segments()) {
    Memory memory = {.fd = MakeDescriptor(segment.size_bytes(), kUsualSeals),
                     .bytes = segment.size_bytes()};
    void* data = mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    ASSERT_NE(data, MAP_FAILED);
    memory.data = static_cast<uint8_t*>(data);
    memories_[segment.segment_index()] = memory;
  }
}

void FakeCache::FillState() {
  const v1::CacheLayout& layout = answer_.layout();
  const v1::CacheBuffers& buffers = answer_.buffers();
  std::fill_n(Array<int32_t>(buffers.block_table()), buffers.block_table().size_bytes() / 4, -1);
  std::fill_n(Array<int32_t>(buffers.sequence_lengths()), layout.max_requests(), -1);
  std::fill_n(Array<int32_t>(buffers.block_generation()), layout.block_count(), 1);
  for (int g = 0; g < layout.groups_size(); ++g) {
    const v1::GroupBuffers& group = buffers.groups(g);
    std::fill_n(Array<int32_t>(group.owner()), group.owner().size_bytes() / 4, -1);
    const int hot_size = layout.groups(g).hot_size();
    for (int r = 0; r < layout.max_requests(); ++r) {
      int16_t* lru = Array<int16_t>(group.lru()) + int64_t{r} * hot_size;
      std::iota(lru, lru + hot_size, int16_t{0});
    }
  }
}

uint8_t* FakeCache::DataOf(const v1::Buffer& buffer) const {
  return memories_.at(buffer.segment_index()).data + buffer.offset_bytes();
}

absl::StatusOr<int> FakeCache::Redeem(const std::string& token) const {
  for (const v1::Segment& segment : answer_.segments()) {
    const auto memory = memories_.find(segment.segment_index());
    if (segment.fd_token() != token || memory == memories_.end()) continue;
    return fcntl(memory->second.fd, F_DUPFD_CLOEXEC, 0);
  }
  return absl::NotFoundError(absl::StrCat("no token ", token));
}

void FakeCache::ReplaceDescriptor(int segment_index, int64_t bytes, int seals) {
  Memory& memory = memories_.at(segment_index);
  close(memory.fd);
  memory.fd = MakeDescriptor(bytes, seals);
}

}  // namespace kvtier::client
