#include "client/segment_map.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/region_index.h"

namespace kvtier::client {
namespace {

// Finds arrays in mapped segments and remembers the first that is wrong.
class Finder {
 public:
  explicit Finder(const std::map<int32_t, MappedSegment>& segments) : segments_(segments) {}

  // `count` elements of T. An array that is wrong is empty, and status() says why.
  template <typename T>
  std::span<T> Array(const std::string& name, const v1::Buffer& buffer, v1::SegmentKind kind,
                     int64_t count) {
    uint8_t* const data =
        Bytes(name, buffer, kind, std::is_const_v<T>, count * int64_t{sizeof(T)}, alignof(T));
    if (data == nullptr) return {};
    return {reinterpret_cast<T*>(data), static_cast<size_t>(count)};
  }

  // `row_count` rows that the kernels write.
  Rows RowsOf(const std::string& name, const v1::Buffer& buffer, v1::SegmentKind kind,
              const RowLayout& layout, int32_t row_count) {
    uint8_t* const data = Bytes(name, buffer, kind, /*read_only=*/false,
                                StorageBytes(layout, row_count), kRowAlignment);
    return data == nullptr ? Rows() : Rows(data, layout, row_count);
  }

  const absl::Status& status() const { return status_; }

 private:
  uint8_t* Bytes(const std::string& name, const v1::Buffer& buffer, v1::SegmentKind kind,
                 bool read_only, int64_t bytes, int64_t alignment) {
    if (!status_.ok()) return nullptr;
    const auto found = segments_.find(buffer.segment_index());
    if (found == segments_.end()) {
      return Refuse(name, absl::StrCat("is in segment ", buffer.segment_index(),
                                       ", which the answer does not have"));
    }
    const MappedSegment& segment = found->second;
    if (segment.kind != kind) {
      return Refuse(name, absl::StrCat("is in a segment of kind ", static_cast<int>(segment.kind),
                                       " instead of ", static_cast<int>(kind)));
    }
    if (segment.read_only && !read_only) return Refuse(name, "is in a read-only segment");
    if (buffer.offset_bytes() < 0 || buffer.offset_bytes() % alignment != 0 ||
        buffer.offset_bytes() > segment.mapping.size_bytes()) {
      return Refuse(name, absl::StrCat("begins at byte ", buffer.offset_bytes(),
                                       " of a segment of ", segment.mapping.size_bytes()));
    }
    if (buffer.size_bytes() < bytes ||
        buffer.size_bytes() > segment.mapping.size_bytes() - buffer.offset_bytes()) {
      return Refuse(name, absl::StrCat("has ", buffer.size_bytes(), " bytes from byte ",
                                       buffer.offset_bytes(), " of a segment of ",
                                       segment.mapping.size_bytes(), "; the layout needs ", bytes));
    }
    return segment.mapping.data() + buffer.offset_bytes();
  }

  uint8_t* Refuse(const std::string& name, const std::string& what) {
    status_ = MalformedAnswer(absl::StrCat("the array ", name, " ", what));
    return nullptr;
  }

  const std::map<int32_t, MappedSegment>& segments_;
  absl::Status status_;
};

// What a cache does not have, kernels know by null.
template <typename T>
T* OrNull(std::span<T> array) {
  return array.empty() ? nullptr : array.data();
}

// The arrays of group `g`, for users and for kernels.
void FindGroup(const v1::GroupBuffers& buffers, const CacheShape& cache, int g, Finder* find,
               GroupView* view, GroupKernelArrays* kernel) {
  const GroupShape& shape = cache.groups[g].shape;
  const int64_t positions = int64_t{cache.step_rows} * shape.top_k;
  const int64_t hot_slots = int64_t{shape.region_count} * shape.hot_size;
  const auto name = [g](const char* array) { return absl::StrCat("groups[", g, "].", array); };
  const auto step = [&](const char* array, const v1::Buffer& buffer, int64_t count) {
    return find->Array<int32_t>(name(array), buffer, v1::SEGMENT_KIND_STEP, count);
  };
  const auto state = [&](const char* array, const v1::Buffer& buffer, int64_t count) {
    return find->Array<int32_t>(name(array), buffer, v1::SEGMENT_KIND_STATE, count);
  };
  view->shape = shape;
  view->topk = step("topk", buffers.topk(), positions);
  const auto hot_indices = step("hot_indices", buffers.hot_indices(), positions);
  const auto miss_mask = step("miss_mask", buffers.miss_mask(), positions);
  const auto valid_counts = step("valid_counts", buffers.valid_counts(), cache.step_rows);
  const auto plan_slots = step("plan_slots", buffers.plan_slots(), positions);
  const auto plan_hot_rows = step("plan_hot_rows", buffers.plan_hot_rows(), positions);
  const auto plan_counts = step("plan_counts", buffers.plan_counts(), cache.step_rows);
  const auto owner = state("owner", buffers.owner(), hot_slots);
  const auto lru =
      find->Array<int16_t>(name("lru"), buffers.lru(), v1::SEGMENT_KIND_STATE, hot_slots);
  const auto index =
      find->Array<uint16_t>(name("index"), buffers.index(), v1::SEGMENT_KIND_STATE,
                            int64_t{shape.region_count} * RegionIndexLength(shape.hot_size));
  const bool has_scores = shape.policy == EvictionPolicy::kAged;
  const auto score = find->Array<uint8_t>(name("score"), buffers.score(), v1::SEGMENT_KIND_STATE,
                                          has_scores ? hot_slots : 0);
  const auto directory = state("directory", buffers.directory(),
                               cache.share_rows ? int64_t{kDirectoryWords} * shape.slot_count : 0);
  const auto kept = state("kept", buffers.kept(),
                          has_scores ? int64_t{shape.region_count} * shape.rows_per_request : 0);
  const auto stats =
      find->Array<StatsBlock>(name("stats"), buffers.stats(), v1::SEGMENT_KIND_STATE, 1);
  const auto backed = find->Array<int32_t>(name("backed_generation"), buffers.backed_generation(),
                                           v1::SEGMENT_KIND_BACKED_GENERATION, shape.slot_count);
  for (size_t l = 0; l < cache.groups[g].layers.size(); ++l) {
    const RowLayout& layout = cache.groups[g].layers[l];
    const v1::LayerBuffers& layer = buffers.layers(static_cast<int>(l));
    const std::string layer_name = absl::StrCat(name("layers["), l, "]");
    LayerRows rows;
    rows.host = find->RowsOf(layer_name + ".host", layer.host(), v1::SEGMENT_KIND_HOST_POOL, layout,
                             shape.slot_count);
    rows.hot = find->RowsOf(layer_name + ".hot", layer.hot(), v1::SEGMENT_KIND_HOT_BUFFER, layout,
                            shape.region_count * shape.region_stride);
    kernel->layers.push_back({rows.host.data(), rows.hot.data(), layout});
    view->layers.push_back(rows);
  }
  view->hot_indices = hot_indices;
  view->miss_mask = miss_mask;
  view->valid_counts = valid_counts;
  view->plan_slots = plan_slots;
  view->plan_hot_rows = plan_hot_rows;
  view->plan_counts = plan_counts;
  view->owner = owner;
  view->lru = lru;
  view->backed_generation = backed;
  view->stats = stats.data();
  kernel->state = {owner.data(),  lru.data(),        OrNull(index),
                   OrNull(score), OrNull(directory), OrNull(kept)};
  kernel->tracking.backed_generation = backed.data();
  kernel->plan = {plan_slots.data(), plan_hot_rows.data(), plan_counts.data()};
  kernel->hot_indices = hot_indices.data();
  kernel->miss_mask = miss_mask.data();
  kernel->valid_counts = valid_counts.data();
  kernel->stats = stats.data();
}

absl::Status CheckCounts(const v1::CacheBuffers& buffers, const CacheShape& shape) {
  if (buffers.groups_size() != static_cast<int>(shape.groups.size())) {
    return MalformedAnswer(absl::StrCat("arrays of ", buffers.groups_size(),
                                        " groups for a layout of ", shape.groups.size()));
  }
  for (int g = 0; g < buffers.groups_size(); ++g) {
    const int layers = static_cast<int>(shape.groups[g].layers.size());
    if (buffers.groups(g).layers_size() != layers) {
      return MalformedAnswer(absl::StrCat("arrays of ", buffers.groups(g).layers_size(),
                                          " layers in group ", g, " of ", layers));
    }
    if (buffers.groups(g).region_stride() != shape.groups[g].shape.region_stride) {
      return MalformedAnswer(absl::StrCat("groups[", g, "].region_stride is ",
                                          buffers.groups(g).region_stride(), " instead of ",
                                          shape.groups[g].shape.region_stride));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CacheMemory> CacheMemory::Map(const v1::AttachCacheResponse& answer,
                                             const CacheShape& shape, Device* device,
                                             const RedeemToken& redeem) {
  const v1::CacheBuffers& buffers = answer.buffers();
  if (absl::Status status = CheckCounts(buffers, shape); !status.ok()) return status;
  // Before anything is mapped: one segment that cannot be is no reason to map the others.
  for (const v1::Segment& segment : answer.segments()) {
    if (absl::Status status = device->CheckTransport(segment); !status.ok()) return status;
  }
  CacheMemory memory;
  for (const v1::Segment& segment : answer.segments()) {
    absl::StatusOr<Mapping> mapping = device->Map(segment, redeem);
    if (!mapping.ok()) return mapping.status();
    MappedSegment mapped = {segment.kind(), segment.read_only(), *std::move(mapping)};
    if (!memory.segments_.emplace(segment.segment_index(), std::move(mapped)).second) {
      return MalformedAnswer(absl::StrCat("two segments have number ", segment.segment_index()));
    }
  }

  Finder find(memory.segments_);
  CacheView& view = memory.view_;
  view.block_table =
      find.Array<int32_t>("block_table", buffers.block_table(), v1::SEGMENT_KIND_STATE,
                          int64_t{shape.max_requests} * shape.max_blocks);
  view.sequence_lengths = find.Array<int32_t>("sequence_lengths", buffers.sequence_lengths(),
                                              v1::SEGMENT_KIND_STATE, shape.max_requests);
  view.block_generation =
      find.Array<const int32_t>("block_generation", buffers.block_generation(),
                                v1::SEGMENT_KIND_BLOCK_GENERATION, shape.block_count);
  view.row_to_request = find.Array<int32_t>("row_to_request", buffers.row_to_request(),
                                            v1::SEGMENT_KIND_STEP, shape.step_rows);
  view.newest_slot = find.Array<int32_t>("newest_slot", buffers.newest_slot(),
                                         v1::SEGMENT_KIND_STEP, shape.step_rows);
  view.num_real_rows =
      find.Array<int32_t>("num_real_rows", buffers.num_real_rows(), v1::SEGMENT_KIND_STEP, 1)
          .data();
  view.progress = find.Array<int32_t>("progress", buffers.progress(), v1::SEGMENT_KIND_PROGRESS, 2);
  view.groups.resize(shape.groups.size());
  memory.kernel_arrays_.resize(shape.groups.size());
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    FindGroup(buffers.groups(static_cast<int>(g)), shape, static_cast<int>(g), &find,
              &view.groups[g], &memory.kernel_arrays_[g]);
    memory.kernel_arrays_[g].tracking.block_generation = view.block_generation.data();
  }
  if (!find.status().ok()) return find.status();
  return memory;
}

}  // namespace kvtier::client
