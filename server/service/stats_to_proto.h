// What operators see: snapshots of the node as answers of KvTierAdmin.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "kernels/counters.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "server/host_pool/host_pool.h"
#include "server/session/types.h"

namespace kvtier {

google::protobuf::Timestamp ToProto(absl::Time time);
// Every counter is present, also at zero; hit_rate only where there were lookups.
v1::Counters ToProto(const Counts& counts);
v1::PoolStats ToProto(const HostPool::Stats& stats);

v1::GetStatsResponse StatsToProto(const NodeSnapshot& node, const HostPool::Stats& pool,
                                  absl::string_view boot_id, absl::Time start_time);
v1::ListCachesResponse CachesToProto(const NodeSnapshot& node);
v1::ListSessionsResponse SessionsToProto(const std::vector<SessionSnapshot>& sessions);

// One page of `requests`, which are in order. The token names the last request of the page
// before, so that requests that come and go between pages are neither skipped nor repeated.
// Errors: FIELD_INVALID.
absl::StatusOr<v1::ListRequestsResponse> RequestsToProto(
    const std::vector<RequestSnapshot>& requests, const v1::ListRequestsRequest& request);
// Is what RequestsToProto checks all right?
absl::Status CheckListRequests(const v1::ListRequestsRequest& request);

}  // namespace kvtier
