#include "server/service/from_proto.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/support/wire_limits.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

static_assert(wire::kInlineRowsMax == kInlineRowsMax);
static_assert(wire::kInlinePositionsMax == kInlinePositionsMax);
static_assert(wire::kInlineBackupRowsMax == kInlineBackupRowsMax);
static_assert(wire::kMessageBytesMax == kMessageBytesMax);

constexpr int32_t kBlockSizeDefault = 64;
constexpr int32_t kApiVersion = 1;
constexpr int kMessageTextBytesMax = 1024;

absl::Status CheckNotNegative(absl::string_view field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return FieldInvalid(field, absl::StrCat(value), "at least 0");
}

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t minimum, int64_t maximum) {
  if (count >= minimum && count <= maximum) return absl::OkStatus();
  return FieldInvalid(field, absl::StrCat(count, " entries long"),
                      absl::StrCat(minimum, "..", maximum, " entries long"));
}

absl::Status CheckName(absl::string_view field, absl::string_view value, int64_t minimum) {
  if (static_cast<int64_t>(value.size()) < minimum || value.size() > kNameBytesMax) {
    return FieldInvalid(field, absl::StrCat(value.size(), " bytes long"),
                        absl::StrCat(minimum, "..", kNameBytesMax, " bytes long"));
  }
  return absl::OkStatus();
}

absl::Status UnknownEnum(const std::string& field, int number, const std::string& limit) {
  const std::string value = absl::StrCat(number);
  return MakeError(absl::StatusCode::kInvalidArgument, "LAYOUT_INVALID",
                   absl::StrCat(field, " is ", value, "; it must be ", limit),
                   {{"field", field}, {"value", value}, {"limit", limit}});
}

absl::StatusOr<RowLayout> RowFromProto(const v1::LayerLayout& layer, int32_t block_size,
                                       const std::string& name) {
  RowLayout row;
  row.value_bytes = layer.row_bytes();
  row.scale_bytes = layer.scale_bytes();
  // What has no meaning in a format is passed on, for ValidateLayout to refuse.
  row.row_stride = layer.row_stride_bytes();
  row.page_bytes = layer.page_bytes();
  switch (layer.row_format()) {
    case v1::ROW_FORMAT_CONTIGUOUS:
      row.format = RowFormat::kContiguous;
      if (!layer.has_row_stride_bytes()) row.row_stride = row.value_bytes;
      return row;
    case v1::ROW_FORMAT_SPLIT_PAGE: {
      row.format = RowFormat::kSplitPage;
      row.page_rows = block_size;
      const int64_t used = (int64_t{row.value_bytes} + row.scale_bytes) * block_size;
      if (!layer.has_page_bytes()) {
        row.page_bytes = (used + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
      }
      return row;
    }
    default:
      break;
  }
  return UnknownEnum(name + ".row_format", layer.row_format(),
                     "ROW_FORMAT_CONTIGUOUS (1) or ROW_FORMAT_SPLIT_PAGE (2)");
}

absl::StatusOr<EvictionPolicy> PolicyFromProto(v1::EvictionPolicy policy) {
  switch (policy) {
    case v1::EVICTION_POLICY_UNSPECIFIED:
    case v1::EVICTION_POLICY_LRU:
      return EvictionPolicy::kLru;
    case v1::EVICTION_POLICY_AGED:
      return EvictionPolicy::kAged;
    default:
      break;
  }
  return UnknownEnum("eviction_policy", policy,
                     "EVICTION_POLICY_LRU (1) or EVICTION_POLICY_AGED (2)");
}

int32_t DefaultHotSize(int32_t top_k) {
  return static_cast<int32_t>(std::clamp<int64_t>(int64_t{2} * top_k, 1, int64_t{kHotSizeMax}));
}

absl::StatusOr<GroupLayout> GroupFromProto(const v1::LayerGroupLayout& from, int32_t block_size,
                                           const std::string& name) {
  GroupLayout group;
  group.top_k = from.top_k();
  group.hot_size = from.has_hot_size() ? from.hot_size() : DefaultHotSize(from.top_k());
  if (from.layers_size() > kLayersMax) {
    return FieldInvalid(absl::StrCat(name, ".layers"),
                        absl::StrCat(from.layers_size(), " entries long"),
                        absl::StrCat("1..", kLayersMax, " entries long"));
  }
  for (int i = 0; i < from.layers_size(); ++i) {
    KVTIER_ASSIGN_OR_RETURN(RowLayout row, RowFromProto(from.layers(i), block_size,
                                                        absl::StrCat(name, ".layers[", i, "]")));
    group.layers.push_back(row);
  }
  return group;
}

std::optional<LayerRange> RangeFromProto(bool present, const v1::LayerRange& range) {
  if (!present) return std::nullopt;
  return LayerRange{.first_layer = range.first_layer(), .layer_count = range.layer_count()};
}

absl::Status NoInput() {
  return FieldInvalid("input", "absent or unknown", "one of the alternatives of the request",
                      "a newer client may know more of them than this daemon");
}

template <typename Request>
std::optional<int32_t> AfterWorker(const Request& request) {
  if (!request.has_after_worker()) return std::nullopt;
  return request.after_worker();
}

}  // namespace

absl::StatusOr<CacheLayout> LayoutFromProto(const v1::AttachCacheRequest& request) {
  if (!request.has_layout()) return FieldInvalid("layout", "absent", "present");
  const v1::CacheLayout& from = request.layout();
  CacheLayout layout;
  layout.block_size = from.has_block_size() ? from.block_size() : kBlockSizeDefault;
  layout.block_count = from.block_count();
  layout.max_requests = from.max_requests();
  layout.rows_per_request = from.has_rows_per_request() ? from.rows_per_request() : 1;
  layout.max_blocks_per_request =
      from.has_max_blocks_per_request() ? from.max_blocks_per_request() : from.block_count();
  layout.step_rows =
      from.has_step_rows()
          ? from.step_rows()
          : static_cast<int32_t>(std::clamp<int64_t>(
                int64_t{layout.max_requests} * layout.rows_per_request, 1, kStepRowsMax));
  layout.dtype_tag = from.dtype_tag();
  KVTIER_ASSIGN_OR_RETURN(layout.eviction_policy, PolicyFromProto(from.eviction_policy()));
  layout.share_rows = from.share_rows();
  // Before anything is made for each of them.
  if (from.groups_size() > kGroupsMax) {
    return FieldInvalid("layout.groups", absl::StrCat(from.groups_size(), " entries long"),
                        absl::StrCat("1..", kGroupsMax, " entries long"));
  }
  for (int i = 0; i < from.groups_size(); ++i) {
    KVTIER_ASSIGN_OR_RETURN(GroupLayout group, GroupFromProto(from.groups(i), layout.block_size,
                                                              absl::StrCat("groups[", i, "]")));
    layout.groups.push_back(std::move(group));
  }
  return layout;
}

absl::StatusOr<SwapInCall> FromProto(const v1::SwapInRequest& request) {
  SwapInCall call;
  call.cache = request.cache();
  call.group = request.group_index();
  call.use_slots = request.use_slots();
  call.after_worker = AfterWorker(request);
  call.layers = RangeFromProto(request.has_layers(), request.layers());
  switch (request.input_case()) {
    case v1::SwapInRequest::kStep:
      KVTIER_RETURN_IF_ERROR(CheckNotNegative("step.num_rows", request.step().num_rows()));
      call.step_rows = request.step().num_rows();
      return call;
    case v1::SwapInRequest::kInline: {
      KVTIER_RETURN_IF_ERROR(
          CheckCount("inline.rows", request.inline_().rows_size(), 0, kInlineRowsMax));
      std::vector<InlineSwapInRow>& rows = call.inline_rows.emplace();
      for (const v1::SwapInRow& row : request.inline_().rows()) {
        rows.push_back({.request_id = row.request_id(),
                        .topk = {row.topk().begin(), row.topk().end()},
                        .newest_slot = row.has_newest_slot() ? row.newest_slot() : kNone});
      }
      return call;
    }
    default:
      return NoInput();
  }
}

absl::StatusOr<ReplayPlanCall> FromProto(const v1::ReplayPlanRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckNotNegative("num_rows", request.num_rows()));
  return ReplayPlanCall{.cache = request.cache(),
                        .group = request.group_index(),
                        .layers = RangeFromProto(request.has_layers(), request.layers()),
                        .num_rows = request.num_rows(),
                        .after_worker = AfterWorker(request)};
}

absl::StatusOr<BackupCall> FromProto(const v1::BackupRequest& request) {
  BackupCall call;
  call.cache = request.cache();
  call.after_worker = AfterWorker(request);
  switch (request.input_case()) {
    case v1::BackupRequest::kStep:
      KVTIER_RETURN_IF_ERROR(CheckNotNegative("step.num_rows", request.step().num_rows()));
      call.step_rows = request.step().num_rows();
      return call;
    case v1::BackupRequest::kInline: {
      KVTIER_RETURN_IF_ERROR(
          CheckCount("inline.rows", request.inline_().rows_size(), 0, kInlineBackupRowsMax));
      std::vector<InlineBackupRow>& rows = call.inline_rows.emplace();
      for (const v1::BackupRow& row : request.inline_().rows()) {
        InlineBackupRow& to = rows.emplace_back();
        to.request_id = row.request_id();
        to.slot = row.slot();
        if (row.has_source_hot_row()) to.source_hot_row = row.source_hot_row();
      }
      return call;
    }
    case v1::BackupRequest::kTensor:
      return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                       "tensors of a worker's own are backed up by the worker's client library, "
                       "in its process; this daemon does not open them",
                       {{"feature", "BackupRequest.tensor"}});
    default:
      return NoInput();
  }
}

absl::StatusOr<absl::Duration> FromProto(absl::string_view field,
                                         const google::protobuf::Duration& duration) {
  constexpr int64_t kSecondsMax = 315576000000;  // as protobuf says: 10,000 years
  const bool valid = duration.seconds() >= 0 && duration.seconds() <= kSecondsMax &&
                     duration.nanos() >= 0 && duration.nanos() <= 999999999;
  if (!valid) {
    return FieldInvalid(field, absl::StrCat(duration.seconds(), " s ", duration.nanos(), " ns"),
                        "a duration that is not negative, with nanos in 0..999999999");
  }
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::Status CheckOpenSession(const v1::OpenSessionRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckName("client_name", request.client_name(), 0));
  if (request.api_version() == 0 || request.api_version() == kApiVersion) return absl::OkStatus();
  return FieldInvalid("api_version", absl::StrCat(request.api_version()), absl::StrCat(kApiVersion),
                      "this daemon speaks no other version");
}

absl::Status CheckCacheName(absl::string_view cache) {
  KVTIER_RETURN_IF_ERROR(CheckName("cache", cache, 1));
  const bool plain = std::all_of(cache.begin(), cache.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '/' ||
           c == '-';
  });
  if (plain) return absl::OkStatus();
  return FieldInvalid("cache", absl::StrCat("\"", absl::Utf8SafeCHexEscape(cache), "\""),
                      "of the characters A-Z a-z 0-9 . _ / -");
}

absl::Status CheckAdmitRequest(const v1::AdmitRequestRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckName("request_id", request.request_id(), 1));
  return CheckNotNegative("reserve_blocks", request.reserve_blocks());
}

absl::Status CheckAssignBlocks(const v1::AssignBlocksRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckNotNegative("count", request.count()));
  const int shared = request.shared_block_ids_size();
  if (shared == 0 && request.count() == 0) {
    return FieldInvalid("count", "0", "at least 1 where no blocks are shared");
  }
  KVTIER_RETURN_IF_ERROR(CheckCount("shared_block_ids", shared, 0, wire::kBlocksPerCallMax));
  // Both are in the answer.
  if (const int64_t most = wire::kBlocksPerCallMax - shared; request.count() > most) {
    return FieldInvalid("count", absl::StrCat(request.count()),
                        absl::StrCat("at most ", most, " with ", shared, " shared blocks"));
  }
  if (request.block_tags_size() != 0 && request.block_tags_size() != request.count()) {
    return FieldInvalid("block_tags", absl::StrCat(request.block_tags_size(), " entries long"),
                        absl::StrCat("empty or one for each of ", request.count(), " new blocks"));
  }
  if (request.shared_generations_size() == 0 || request.shared_generations_size() == shared) {
    return absl::OkStatus();
  }
  return FieldInvalid("shared_generations",
                      absl::StrCat(request.shared_generations_size(), " entries long"),
                      absl::StrCat("empty or as long as shared_block_ids (", shared, ")"));
}

absl::Status CheckBlockList(int64_t size) {
  return CheckCount("block_ids", size, 1, wire::kBlocksPerCallMax);
}

absl::Status CheckMessage(absl::string_view message) {
  if (message.size() <= kMessageTextBytesMax) return absl::OkStatus();
  return FieldInvalid("message", absl::StrCat(message.size(), " bytes long"),
                      absl::StrCat("at most ", kMessageTextBytesMax, " bytes long"));
}

}  // namespace kvtier
