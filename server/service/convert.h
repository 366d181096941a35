// Messages of kvtier.v1 to the types of the session floor, and back.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"
#include "server/core/cache_layout.h"
#include "server/host_pool/host_pool.h"
#include "server/session/types.h"

namespace kvtier {

// With every default filled in; not validated beyond what the conversion needs.
// Errors: LAYOUT_INVALID where a field is missing, unknown, or a default would overflow.
absl::StatusOr<CacheLayout> LayoutFromProto(const v1::CacheLayout& proto);
v1::CacheLayout LayoutToProto(const CacheLayout& layout);

v1::Device DeviceToProto(const DeviceInfo& device);
v1::AttachCacheResponse AttachToProto(const AttachResult& result);

// Errors: FIELD_INVALID where the input is missing or has too many rows.
absl::StatusOr<SwapInCall> SwapInFromProto(const v1::SwapInRequest& proto);
absl::StatusOr<BackupCall> BackupFromProto(const v1::BackupRequest& proto);
ReplayPlanCall ReplayPlanFromProto(const v1::ReplayPlanRequest& proto);
v1::SwapInResponse SwapInToProto(const OperationOutcome& outcome);

v1::Counters CountersToProto(const Counts& counts);
v1::PoolStats PoolToProto(const HostPool::Stats& stats);
v1::CacheStats CacheStatsToProto(const CacheSnapshot& cache);
google::protobuf::Timestamp TimeToProto(absl::Time time);
absl::Duration DurationFromProto(const google::protobuf::Duration& proto);

}  // namespace kvtier
