#include "server/core/cache_layout.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Wide enough for every product below, whatever the numbers are.
using Wide = __int128;

constexpr int64_t kIndexEnd = int64_t{1} << 31;

absl::Status Invalid(absl::string_view field, absl::string_view value, absl::string_view limit,
                     absl::string_view explanation = "") {
  std::string message = absl::StrCat(field, " is ", value, "; it must be ", limit);
  if (!explanation.empty()) absl::StrAppend(&message, ": ", explanation);
  return MakeError(absl::StatusCode::kInvalidArgument, "LAYOUT_INVALID", message,
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"limit", std::string(limit)}});
}

template <typename T>
int64_t Count(const std::vector<T>& elements) {
  return static_cast<int64_t>(elements.size());
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t minimum, int64_t maximum,
                        absl::string_view explanation = "") {
  if (value >= minimum && value <= maximum) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value), absl::StrCat(minimum, "..", maximum), explanation);
}

absl::Status CheckMultiple(absl::string_view field, int64_t value, int64_t divisor) {
  if (value % divisor == 0) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value), absl::StrCat("a multiple of ", divisor),
                 absl::StrCat(value, " % ", divisor, " = ", value % divisor));
}

absl::Status CheckUnused(absl::string_view field, int64_t value, absl::string_view format) {
  if (value == 0) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value), "0", absl::StrCat("it has no meaning in ", format));
}

// `a` and `b` are positive int32 already. Elements are numbered with int32.
absl::Status CheckIndexable(absl::string_view field, int64_t a, absl::string_view other,
                            int64_t b) {
  if (a * b < kIndexEnd) return absl::OkStatus();
  return Invalid(field, absl::StrCat(a), absl::StrCat("below 2147483648 / ", other, " (", b, ")"),
                 absl::StrCat(field, " * ", other, " = ", a * b, ", and must be below ", kIndexEnd,
                              " to be numbered with int32"));
}

absl::Status CheckContiguous(const RowLayout& row, const std::string& name) {
  const std::string stride = name + ".row_stride_bytes";
  if (row.row_stride < row.value_bytes) {
    return Invalid(stride, absl::StrCat(row.row_stride),
                   absl::StrCat("at least row_bytes (", row.value_bytes, ")"));
  }
  KVTIER_RETURN_IF_ERROR(CheckMultiple(stride, row.row_stride, kRowAlignment));
  // Also so that two layouts never differ in a field that means nothing.
  constexpr char kFormat[] = "contiguous rows";
  KVTIER_RETURN_IF_ERROR(CheckUnused(name + ".scale_bytes", row.scale_bytes, kFormat));
  KVTIER_RETURN_IF_ERROR(CheckUnused(name + ".page_rows", row.page_rows, kFormat));
  return CheckUnused(name + ".page_bytes", row.page_bytes, kFormat);
}

absl::Status CheckSplitPage(const RowLayout& row, int32_t block_size, const std::string& name) {
  KVTIER_RETURN_IF_ERROR(
      CheckRange(name + ".scale_bytes", row.scale_bytes, kScaleAlignment, kScaleBytesMax));
  KVTIER_RETURN_IF_ERROR(CheckMultiple(name + ".scale_bytes", row.scale_bytes, kScaleAlignment));
  if (row.page_rows != block_size) {
    return Invalid(name + ".page_rows", absl::StrCat(row.page_rows),
                   absl::StrCat("block_size (", block_size, ")"), "a page holds one block");
  }
  const std::string page = name + ".page_bytes";
  const int64_t used = int64_t{row.page_rows} * RowBytes(row);
  if (row.page_bytes < used) {
    return Invalid(page, absl::StrCat(row.page_bytes), absl::StrCat("at least ", used),
                   absl::StrCat(row.page_rows, " rows of ", row.value_bytes, " + ", row.scale_bytes,
                                " bytes"));
  }
  KVTIER_RETURN_IF_ERROR(CheckMultiple(page, row.page_bytes, kRowAlignment));
  return CheckUnused(name + ".row_stride_bytes", row.row_stride, "split pages");
}

absl::Status CheckRow(const RowLayout& row, int32_t block_size, const std::string& name) {
  KVTIER_RETURN_IF_ERROR(
      CheckRange(name + ".row_bytes", row.value_bytes, kRowBytesMin, kRowBytesMax));
  KVTIER_RETURN_IF_ERROR(CheckMultiple(name + ".row_bytes", row.value_bytes, kRowAlignment));
  switch (row.format) {
    case RowFormat::kContiguous:
      return CheckContiguous(row, name);
    case RowFormat::kSplitPage:
      return CheckSplitPage(row, block_size, name);
  }
  return Invalid(name + ".row_format", absl::StrCat(static_cast<int32_t>(row.format)),
                 "contiguous or split page");
}

absl::Status CheckGroup(const CacheLayout& layout, int index) {
  const GroupLayout& group = layout.groups[index];
  const std::string name = absl::StrCat("groups[", index, "]");
  KVTIER_RETURN_IF_ERROR(
      CheckRange(name + ".layers", Count(group.layers), 1, kLayersMax, "layers of the group"));
  KVTIER_RETURN_IF_ERROR(CheckRange(name + ".top_k", group.top_k, 0, kHotSizeMax));
  KVTIER_RETURN_IF_ERROR(
      CheckRange(name + ".hot_size", group.hot_size, 1, kHotSizeMax, "hot slots are int16"));
  if (group.top_k > group.hot_size) {
    return Invalid(name + ".top_k", absl::StrCat(group.top_k),
                   absl::StrCat("at most hot_size (", group.hot_size, ")"),
                   "all rows of a step must be hot at a time");
  }
  const int64_t rows = int64_t{layout.rows_per_request} * group.top_k;
  if (rows > group.hot_size) {
    return Invalid(name + ".hot_size", absl::StrCat(group.hot_size),
                   absl::StrCat("at least rows_per_request * top_k (", rows, ")"),
                   "rows of one request in one step must not evict each other");
  }
  const int32_t stride = RegionStrideOf(layout, index);
  KVTIER_RETURN_IF_ERROR(
      CheckIndexable("max_requests", layout.max_requests, name + " region stride", stride));
  KVTIER_RETURN_IF_ERROR(
      CheckIndexable("step_rows", layout.step_rows, name + ".top_k", group.top_k));
  for (size_t i = 0; i < group.layers.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(
        CheckRow(group.layers[i], layout.block_size, absl::StrCat(name, ".layers[", i, "]")));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const CacheLayout& layout) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  KVTIER_RETURN_IF_ERROR(CheckRange("block_size", layout.block_size, 1, kBlockSizeMax));
  KVTIER_RETURN_IF_ERROR(CheckRange("block_count", layout.block_count, 1, kMax));
  KVTIER_RETURN_IF_ERROR(
      CheckIndexable("block_count", layout.block_count, "block_size", layout.block_size));
  KVTIER_RETURN_IF_ERROR(CheckRange("max_requests", layout.max_requests, 1, kRequestsMax));
  KVTIER_RETURN_IF_ERROR(
      CheckRange("rows_per_request", layout.rows_per_request, 1, kRowsPerRequestMax));
  KVTIER_RETURN_IF_ERROR(CheckRange("max_blocks_per_request", layout.max_blocks_per_request, 1,
                                    layout.block_count, "at most block_count"));
  KVTIER_RETURN_IF_ERROR(CheckIndexable("max_blocks_per_request", layout.max_blocks_per_request,
                                        "max_requests", layout.max_requests));
  return CheckRange("step_rows", layout.step_rows, 1, kStepRowsMax);
}

absl::Status CheckDtypeTag(const std::string& tag) {
  if (tag.size() > kDtypeTagBytesMax) {
    return Invalid("dtype_tag", absl::StrCat(tag.size(), " bytes"),
                   absl::StrCat("at most ", kDtypeTagBytesMax, " bytes"));
  }
  if (std::all_of(tag.begin(), tag.end(), [](char c) { return c >= ' ' && c <= '~'; })) {
    return absl::OkStatus();
  }
  return Invalid("dtype_tag", absl::CHexEscape(tag), "printable ASCII");
}

absl::Status CheckEvictionPolicy(EvictionPolicy policy) {
  switch (policy) {
    case EvictionPolicy::kLru:
    case EvictionPolicy::kAged:
      return absl::OkStatus();
  }
  return Invalid("eviction_policy", absl::StrCat(static_cast<int32_t>(policy)), "LRU or AGED");
}

// Every size that the geometry functions add up, so that none of them can overflow.
absl::Status CheckBytes(const CacheLayout& layout) {
  // More than any alignment can add: one array a layer, sixteen a group and a few.
  constexpr Wide kPadding =
      Wide{kPoolAlignmentBytes} + (kLayersMax + 17 * (kGroupsMax + 1)) * Wide{kArrayAlignmentBytes};
  constexpr Wide kLimit = std::numeric_limits<int64_t>::max() - kPadding;
  Wide host = 0, hot = 0;
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const Wide hot_rows =
        Wide{layout.max_requests} * RegionStrideOf(layout, static_cast<int>(group));
    for (const RowLayout& row : layout.groups[group].layers) {
      const bool contiguous = row.format == RowFormat::kContiguous;
      const Wide unit_bytes = contiguous ? row.row_stride : row.page_bytes;
      const int32_t unit_rows = contiguous ? 1 : row.page_rows;
      host += (layout.slot_count() + Wide{unit_rows} - 1) / unit_rows * unit_bytes;
      hot += (hot_rows + unit_rows - 1) / unit_rows * unit_bytes;
    }
  }
  if (host <= kLimit && hot <= kLimit) return absl::OkStatus();
  return Invalid("groups",
                 absl::StrCat("more than ", std::numeric_limits<int64_t>::max(), " bytes"),
                 absl::StrCat("at most ", static_cast<int64_t>(kLimit), " bytes"),
                 "rows of all layers together; row_stride_bytes or page_bytes is too large");
}

std::string NameOf(EvictionPolicy policy) {
  return policy == EvictionPolicy::kAged ? "AGED" : "LRU";
}

std::string NameOf(bool value) { return value ? "true" : "false"; }

// The first difference found, named as ValidateLayout names fields.
struct Difference {
  std::string field, expected, actual;
};

class Comparison {
 public:
  // Notes the difference unless there was one before.
  void Compare(absl::string_view field, int64_t expected, int64_t actual) {
    if (expected != actual) Note(field, absl::StrCat(expected), absl::StrCat(actual));
  }
  void Compare(absl::string_view field, const std::string& expected, const std::string& actual) {
    if (expected != actual) Note(field, absl::CHexEscape(expected), absl::CHexEscape(actual));
  }
  const std::optional<Difference>& first() const { return first_; }

 private:
  void Note(absl::string_view field, std::string expected, std::string actual) {
    if (!first_) first_ = {std::string(field), std::move(expected), std::move(actual)};
  }
  std::optional<Difference> first_;
};

void CompareRows(const RowLayout& expected, const RowLayout& actual, const std::string& name,
                 Comparison* comparison) {
  comparison->Compare(name + ".row_format", static_cast<int32_t>(expected.format),
                      static_cast<int32_t>(actual.format));
  comparison->Compare(name + ".row_bytes", expected.value_bytes, actual.value_bytes);
  comparison->Compare(name + ".row_stride_bytes", expected.row_stride, actual.row_stride);
  comparison->Compare(name + ".scale_bytes", expected.scale_bytes, actual.scale_bytes);
  comparison->Compare(name + ".page_rows", expected.page_rows, actual.page_rows);
  comparison->Compare(name + ".page_bytes", expected.page_bytes, actual.page_bytes);
}

void CompareGroups(const GroupLayout& expected, const GroupLayout& actual, const std::string& name,
                   Comparison* comparison) {
  comparison->Compare(name + ".top_k", expected.top_k, actual.top_k);
  comparison->Compare(name + ".hot_size", expected.hot_size, actual.hot_size);
  comparison->Compare(name + ".layers", Count(expected.layers), Count(actual.layers));
  const size_t common = std::min(expected.layers.size(), actual.layers.size());
  for (size_t i = 0; i < common; ++i) {
    CompareRows(expected.layers[i], actual.layers[i], absl::StrCat(name, ".layers[", i, "]"),
                comparison);
  }
}

}  // namespace

absl::Status ValidateLayout(const CacheLayout& layout) {
  KVTIER_RETURN_IF_ERROR(CheckDtypeTag(layout.dtype_tag));
  KVTIER_RETURN_IF_ERROR(CheckEvictionPolicy(layout.eviction_policy));
  KVTIER_RETURN_IF_ERROR(CheckSizes(layout));
  KVTIER_RETURN_IF_ERROR(CheckRange("groups", Count(layout.groups), 1, kGroupsMax));
  int64_t layers = 0;
  for (size_t i = 0; i < layout.groups.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(CheckGroup(layout, static_cast<int>(i)));
    layers += Count(layout.groups[i].layers);
  }
  KVTIER_RETURN_IF_ERROR(CheckRange("groups", layers, 1, kLayersMax, "layers of all groups"));
  return CheckBytes(layout);
}

absl::Status CompareLayouts(const CacheLayout& expected, const CacheLayout& actual) {
  Comparison comparison;
  comparison.Compare("dtype_tag", expected.dtype_tag, actual.dtype_tag);
  comparison.Compare("eviction_policy", NameOf(expected.eviction_policy),
                     NameOf(actual.eviction_policy));
  comparison.Compare("share_rows", NameOf(expected.share_rows), NameOf(actual.share_rows));
  comparison.Compare("block_size", expected.block_size, actual.block_size);
  comparison.Compare("block_count", expected.block_count, actual.block_count);
  comparison.Compare("max_requests", expected.max_requests, actual.max_requests);
  comparison.Compare("rows_per_request", expected.rows_per_request, actual.rows_per_request);
  comparison.Compare("max_blocks_per_request", expected.max_blocks_per_request,
                     actual.max_blocks_per_request);
  comparison.Compare("step_rows", expected.step_rows, actual.step_rows);
  comparison.Compare("groups", Count(expected.groups), Count(actual.groups));
  const size_t common = std::min(expected.groups.size(), actual.groups.size());
  for (size_t i = 0; i < common; ++i) {
    CompareGroups(expected.groups[i], actual.groups[i], absl::StrCat("groups[", i, "]"),
                  &comparison);
  }
  if (!comparison.first()) return absl::OkStatus();
  const Difference& difference = *comparison.first();
  return MakeError(absl::StatusCode::kFailedPrecondition, "LAYOUT_MISMATCH",
                   absl::StrCat("the cache exists with another layout: ", difference.field, " is ",
                                difference.expected, " there and ", difference.actual,
                                " in this call; attach with the same layout, or name another "
                                "cache"),
                   {{"field", difference.field},
                    {"value", difference.actual},
                    {"expected", difference.expected}});
}

}  // namespace kvtier
