// Answers of the daemon as text for people.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/kvtier/v1/admin.pb.h"

namespace kvtier::cli {

// Node and caches; with exactly one cache in `stats` and `detailed`, its groups, operations and
// sessions.
std::string StatsView(const v1::GetStatsResponse& stats, bool detailed);
// `now`: when those that nobody is attached to end, and for how long sessions are open.
std::string CachesView(const v1::ListCachesResponse& caches, absl::Time now);
std::string SessionsView(const v1::ListSessionsResponse& sessions, absl::Time now);
std::string RequestsView(const std::vector<v1::RequestInfo>& requests);
std::string InfoView(const v1::GetNodeInfoResponse& info);

// The time below which `fraction` of the operations stayed, by the bucket that it is in.
// Microseconds; -1 where there were none or it took longer than the last bound.
int64_t Quantile(const v1::OperationStats& operation, double fraction);

absl::Time TimeOf(const google::protobuf::Timestamp& time);

}  // namespace kvtier::cli
