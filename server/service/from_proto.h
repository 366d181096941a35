// Requests of the API as calls of the node. Everything that can be judged without the node's
// state is judged here: INVALID_ARGUMENT with the field, its value and the limit.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"
#include "server/core/cache_layout.h"
#include "server/session/types.h"

namespace kvtier {

// With every default filled in; the node validates it. Errors: FIELD_INVALID where there is no
// layout, LAYOUT_INVALID for a row format that is none.
absl::StatusOr<CacheLayout> LayoutFromProto(const v1::AttachCacheRequest& request);

absl::StatusOr<SwapInCall> FromProto(const v1::SwapInRequest& request);
absl::StatusOr<ReplayPlanCall> FromProto(const v1::ReplayPlanRequest& request);
// Also UNIMPLEMENTED / NOT_IMPLEMENTED for device tensors.
absl::StatusOr<BackupCall> FromProto(const v1::BackupRequest& request);

// Not negative, and a valid Duration.
absl::StatusOr<absl::Duration> FromProto(absl::string_view field,
                                         const google::protobuf::Duration& duration);

absl::Status CheckOpenSession(const v1::OpenSessionRequest& request);
// A name that AttachCache may create.
absl::Status CheckCacheName(absl::string_view cache);
absl::Status CheckAdmitRequest(const v1::AdmitRequestRequest& request);
absl::Status CheckAssignBlocks(const v1::AssignBlocksRequest& request);
// A list that names blocks: not empty, not too long.
absl::Status CheckBlockList(int64_t size);
// Free text of an operator.
absl::Status CheckMessage(absl::string_view message);

}  // namespace kvtier
