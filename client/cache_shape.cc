#include "client/cache_shape.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace kvtier::client {
namespace {

// As documented in proto/kvtier/v1/types.proto.
constexpr int32_t kGroupsMax = 64;
constexpr int32_t kLayersMax = 256;
constexpr int32_t kBlockSizeMax = 4096;
constexpr int32_t kRequestsMax = 65536;
constexpr int32_t kRowsPerRequestMax = 64;
constexpr int32_t kStepRowsMax = 65536;
constexpr int32_t kRowBytesMax = 4096;
constexpr int32_t kScaleBytesMax = 1024;
constexpr int64_t kInt32Max = INT32_MAX;

// Collects the first thing that is wrong with a layout.
class Checker {
 public:
  // `value` must be in [low, high].
  void InRange(const std::string& field, int64_t value, int64_t low, int64_t high) {
    if (!status_.ok() || (value >= low && value <= high)) return;
    status_ = MalformedAnswer(
        absl::StrCat("layout.", field, " is ", value, ", outside ", low, "..", high));
  }
  void MultipleOf(const std::string& field, int64_t value, int64_t factor) {
    if (!status_.ok() || value % factor == 0) return;
    status_ =
        MalformedAnswer(absl::StrCat("layout.", field, " is ", value, ", no multiple of ", factor));
  }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

RowLayout LayerOf(const v1::LayerLayout& layer, int32_t block_size, const std::string& name,
                  Checker* check) {
  RowLayout out;
  const std::string field = absl::StrCat(name, ".");
  check->InRange(field + "row_format", layer.row_format(), v1::ROW_FORMAT_CONTIGUOUS,
                 v1::ROW_FORMAT_SPLIT_PAGE);
  check->InRange(field + "row_bytes", layer.row_bytes(), kRowAlignment, kRowBytesMax);
  check->MultipleOf(field + "row_bytes", layer.row_bytes(), kRowAlignment);
  out.value_bytes = layer.row_bytes();
  if (layer.row_format() == v1::ROW_FORMAT_CONTIGUOUS) {
    out.format = RowFormat::kContiguous;
    out.row_stride = layer.row_stride_bytes();
    check->InRange(field + "row_stride_bytes", out.row_stride, out.value_bytes, kInt32Max);
    check->MultipleOf(field + "row_stride_bytes", out.row_stride, kRowAlignment);
    return out;
  }
  out.format = RowFormat::kSplitPage;
  out.scale_bytes = layer.scale_bytes();
  out.page_rows = block_size;
  out.page_bytes = layer.page_bytes();
  check->InRange(field + "scale_bytes", out.scale_bytes, kScaleAlignment, kScaleBytesMax);
  check->MultipleOf(field + "scale_bytes", out.scale_bytes, kScaleAlignment);
  check->InRange(field + "page_bytes", out.page_bytes,
                 int64_t{block_size} * (int64_t{out.value_bytes} + out.scale_bytes), kInt32Max);
  check->MultipleOf(field + "page_bytes", out.page_bytes, kRowAlignment);
  return out;
}

GroupShapes GroupOf(const v1::CacheLayout& layout, int index, Checker* check) {
  const v1::LayerGroupLayout& group = layout.groups(index);
  const std::string name = absl::StrCat("groups[", index, "]");
  GroupShapes out;
  out.shape = {.top_k = group.top_k(),
               .hot_size = group.hot_size(),
               .region_count = layout.max_requests(),
               .rows_per_request = layout.rows_per_request(),
               .block_size = layout.block_size(),
               .slot_count = layout.block_size() * layout.block_count(),
               .max_blocks = layout.max_blocks_per_request(),
               .policy = layout.eviction_policy() == v1::EVICTION_POLICY_AGED
                             ? EvictionPolicy::kAged
                             : EvictionPolicy::kLru};
  check->InRange(name + ".hot_size", group.hot_size(), 1, kHotSizeMax);
  check->InRange(name + ".top_k", group.top_k(), 0, group.hot_size());
  if (layout.rows_per_request() > 1) {
    check->InRange(name + ".rows_per_request * top_k",
                   int64_t{layout.rows_per_request()} * group.top_k(), 0, group.hot_size());
  }
  if (!check->ok()) return out;
  out.shape.region_stride =
      RegionStride(group.hot_size(), ReservedRows(layout.rows_per_request(), out.shape.policy));
  check->InRange(name + ".hot rows", int64_t{out.shape.region_stride} * layout.max_requests(), 1,
                 kInt32Max);
  for (int l = 0; l < group.layers_size(); ++l) {
    out.layers.push_back(LayerOf(group.layers(l), layout.block_size(),
                                 absl::StrCat(name, ".layers[", l, "]"), check));
  }
  return out;
}

// The fields of `asked` that are set must be the same in `given`.
class Comparer {
 public:
  void Same(const std::string& field, int64_t asked, int64_t given) {
    if (!status_.ok() || asked == given) return;
    status_ = MalformedAnswer(
        absl::StrCat("layout.", field, " is ", given, ", and ", asked, " was asked for"));
  }
  void Same(const std::string& field, bool is_set, int64_t asked, int64_t given) {
    if (is_set) Same(field, asked, given);
  }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

void CompareGroups(const v1::LayerGroupLayout& asked, const v1::LayerGroupLayout& given,
                   const std::string& name, Comparer* compare) {
  compare->Same(name + ".top_k", asked.top_k(), given.top_k());
  compare->Same(name + ".hot_size", asked.has_hot_size(), asked.hot_size(), given.hot_size());
  compare->Same(name + ".layers", asked.layers_size(), given.layers_size());
  if (!compare->ok()) return;
  for (int l = 0; l < asked.layers_size(); ++l) {
    const v1::LayerLayout& a = asked.layers(l);
    const v1::LayerLayout& g = given.layers(l);
    const std::string field = absl::StrCat(name, ".layers[", l, "].");
    compare->Same(field + "row_format", a.row_format(), g.row_format());
    compare->Same(field + "row_bytes", a.row_bytes(), g.row_bytes());
    compare->Same(field + "scale_bytes", a.scale_bytes(), g.scale_bytes());
    compare->Same(field + "row_stride_bytes", a.has_row_stride_bytes(), a.row_stride_bytes(),
                  g.row_stride_bytes());
    compare->Same(field + "page_bytes", a.has_page_bytes(), a.page_bytes(), g.page_bytes());
  }
}

}  // namespace

absl::StatusOr<CacheShape> CacheShapeOf(const v1::CacheLayout& layout) {
  Checker check;
  check.InRange("groups", layout.groups_size(), 1, kGroupsMax);
  check.InRange("block_size", layout.block_size(), 1, kBlockSizeMax);
  check.InRange("block_count", layout.block_count(), 1, kInt32Max / kBlockSizeMax * kBlockSizeMax);
  check.InRange("block_size * block_count", int64_t{layout.block_size()} * layout.block_count(), 1,
                kInt32Max);
  check.InRange("max_requests", layout.max_requests(), 1, kRequestsMax);
  check.InRange("rows_per_request", layout.rows_per_request(), 1, kRowsPerRequestMax);
  check.InRange("max_blocks_per_request", layout.max_blocks_per_request(), 1, layout.block_count());
  check.InRange("step_rows", layout.step_rows(), 1, kStepRowsMax);
  check.InRange("eviction_policy", layout.eviction_policy(), v1::EVICTION_POLICY_LRU,
                v1::EVICTION_POLICY_AGED);
  int64_t layers = 0;
  for (const v1::LayerGroupLayout& group : layout.groups()) layers += group.layers_size();
  check.InRange("layers", layers, layout.groups_size(), kLayersMax);
  if (!check.ok()) return check.status();

  CacheShape out = {.block_size = layout.block_size(),
                    .block_count = layout.block_count(),
                    .max_requests = layout.max_requests(),
                    .max_blocks = layout.max_blocks_per_request(),
                    .step_rows = layout.step_rows(),
                    .share_rows = layout.share_rows()};
  for (int g = 0; g < layout.groups_size() && check.ok(); ++g) {
    check.InRange(absl::StrCat("groups[", g, "].layers"), layout.groups(g).layers_size(), 1,
                  kLayersMax);
    out.groups.push_back(GroupOf(layout, g, &check));
  }
  if (!check.ok()) return check.status();
  return out;
}

absl::Status CheckLayoutGiven(const v1::CacheLayout& asked, const v1::CacheLayout& given) {
  Comparer compare;
  compare.Same("groups", asked.groups_size(), given.groups_size());
  compare.Same("block_size", asked.has_block_size(), asked.block_size(), given.block_size());
  compare.Same("block_count", asked.block_count(), given.block_count());
  compare.Same("max_requests", asked.max_requests(), given.max_requests());
  compare.Same("rows_per_request", asked.has_rows_per_request(), asked.rows_per_request(),
               given.rows_per_request());
  compare.Same("max_blocks_per_request", asked.has_max_blocks_per_request(),
               asked.max_blocks_per_request(), given.max_blocks_per_request());
  compare.Same("step_rows", asked.has_step_rows(), asked.step_rows(), given.step_rows());
  compare.Same("eviction_policy",
               asked.eviction_policy() == v1::EVICTION_POLICY_UNSPECIFIED ? v1::EVICTION_POLICY_LRU
                                                                          : asked.eviction_policy(),
               given.eviction_policy());
  compare.Same("share_rows", asked.share_rows(), given.share_rows());
  if (compare.ok() && asked.dtype_tag() != given.dtype_tag()) {
    return MalformedAnswer("layout.dtype_tag is not the one that was asked for");
  }
  for (int g = 0; g < asked.groups_size() && compare.ok(); ++g) {
    CompareGroups(asked.groups(g), given.groups(g), absl::StrCat("groups[", g, "]"), &compare);
  }
  return compare.status();
}

}  // namespace kvtier::client
