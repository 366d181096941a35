// WatchStats: statistics again and again.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "server/service/call_log.h"

namespace kvtier {

inline constexpr absl::Duration kWatchIntervalMin = absl::Milliseconds(100);
inline constexpr absl::Duration kWatchIntervalMax = absl::Hours(1);
inline constexpr absl::Duration kWatchIntervalDefault = absl::Seconds(1);

// The reactor of one call; deletes itself. Writes `read()` at once and then every `interval`. A
// reader that is slower gets fewer answers, each of the moment it was written; nothing piles up.
// The call ends with the first error of `read`.
grpc::ServerWriteReactor<v1::GetStatsResponse>* NewWatchStatsCall(
    const CallRecord& record, absl::Duration interval,
    std::function<absl::StatusOr<std::shared_ptr<const v1::GetStatsResponse>>()> read);

}  // namespace kvtier
