#include "server/service/admin_service.h"

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/service/from_proto.h"
#include "server/service/stats_to_proto.h"
#include "server/service/to_proto.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

// Caches that come and go all the time must not keep who looks at them.
constexpr int kLooksMax = 3;

absl::StatusOr<absl::Duration> IntervalOf(const v1::WatchStatsRequest& request) {
  if (!request.has_interval()) return kWatchIntervalDefault;
  KVTIER_ASSIGN_OR_RETURN(const absl::Duration interval, FromProto("interval", request.interval()));
  if (interval >= kWatchIntervalMin && interval <= kWatchIntervalMax) return interval;
  return FieldInvalid("interval", absl::FormatDuration(interval),
                      absl::StrCat(absl::FormatDuration(kWatchIntervalMin), "..",
                                   absl::FormatDuration(kWatchIntervalMax)));
}

}  // namespace

AdminService::AdminService(const CallDoor& door, const AdminContext* context) : context_(context) {
  const google::protobuf::ServiceDescriptor& service =
      *v1::GetStatsRequest::descriptor()->file()->FindServiceByName("KvTierAdmin");
  const auto receive = [&](const char* name, auto method, const RequestRules& rules = {}) {
    MarkMethodStreamed(service.FindMethodByName(name)->index(),
                       NewReceivingHandler(door, name, this, method, rules));
  };
  receive("GetStats", &AdminService::GetStats);
  receive("WatchStats", &AdminService::WatchStats, {.kind = IncomingCalls::Kind::kStatsWatch});
  receive("ListCaches", &AdminService::ListCaches);
  receive("ListSessions", &AdminService::ListSessions);
  receive("ListRequests", &AdminService::ListRequests);
  receive("GetNodeInfo", &AdminService::GetNodeInfo);
  receive("Drain", &AdminService::Drain);
  receive("EvictSession", &AdminService::EvictSession);
}

absl::StatusOr<v1::GetStatsResponse> AdminService::ReadStats(const std::string& cache) const {
  // The pool changes with the caches, under a lock of its own: where it did meanwhile, both are
  // read again, so that what caches hold adds up to what the pool has given.
  HostPool::Stats pool = context_->pool->stats();
  absl::StatusOr<NodeSnapshot> node = context_->node->Snapshot(cache);
  for (int look = 1; node.ok() && look < kLooksMax; ++look) {
    const HostPool::Stats after = context_->pool->stats();
    if (after.used_bytes == pool.used_bytes) break;
    pool = after;
    node = context_->node->Snapshot(cache);
  }
  if (!node.ok()) return node.status();
  v1::GetStatsResponse stats =
      StatsToProto(*node, pool, context_->node->boot_id(), context_->node->start_time());
  stats.set_control_queue_depth(context_->executor->queue_depth());
  stats.set_control_queue_max(context_->executor->queue_max());
  context_->history->FillWindows(&stats);
  return stats;
}

grpc::ServerUnaryReactor* AdminService::Answer(grpc::CallbackServerContext* call,
                                               const char* method,
                                               const absl::Status& status) const {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const grpc::Status answer = ToWire(status);
  context_->call_log->Ended(method, answer, call);
  reactor->Finish(answer);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::GetStats(grpc::CallbackServerContext* call,
                                                 const v1::GetStatsRequest* request,
                                                 v1::GetStatsResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "GetStats", Role::kViewer);
      !status.ok()) {
    return Answer(call, "GetStats", status);
  }
  absl::StatusOr<v1::GetStatsResponse> stats = ReadStats(request->cache());
  if (stats.ok()) *response = *std::move(stats);
  return Answer(call, "GetStats", stats.status());
}

grpc::ServerWriteReactor<v1::GetStatsResponse>* AdminService::WatchStats(
    grpc::CallbackServerContext* call, const v1::WatchStatsRequest* request) {
  const CallRecord record = {context_->call_log, call, "WatchStats"};
  const absl::StatusOr<absl::Duration> interval = IntervalOf(*request);
  // With each answer, because a stream may outlive the role that it was opened with.
  const auto read = [this, call, valid = interval.status(),
                     cache = request->cache()]() -> absl::StatusOr<RecentStats::Stats> {
    KVTIER_RETURN_IF_ERROR(context_->access->CheckRole(*call, "WatchStats", Role::kViewer));
    KVTIER_RETURN_IF_ERROR(valid);
    // gRPC's alarms, which say when to look, know the machine's clock only.
    return watched_.Get(cache, absl::Now(), [&] { return ReadStats(cache); });
  };
  return NewWatchStatsCall(record, interval.value_or(kWatchIntervalDefault), read);
}

grpc::ServerUnaryReactor* AdminService::ListCaches(grpc::CallbackServerContext* call,
                                                   const v1::ListCachesRequest* /*request*/,
                                                   v1::ListCachesResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "ListCaches", Role::kViewer);
      !status.ok()) {
    return Answer(call, "ListCaches", status);
  }
  const absl::StatusOr<NodeSnapshot> node = context_->node->Snapshot("");
  if (node.ok()) *response = CachesToProto(*node);
  return Answer(call, "ListCaches", node.status());
}

grpc::ServerUnaryReactor* AdminService::ListSessions(grpc::CallbackServerContext* call,
                                                     const v1::ListSessionsRequest* /*request*/,
                                                     v1::ListSessionsResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "ListSessions", Role::kViewer);
      !status.ok()) {
    return Answer(call, "ListSessions", status);
  }
  *response = SessionsToProto(context_->node->Sessions());
  return Answer(call, "ListSessions", absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListRequests(grpc::CallbackServerContext* call,
                                                     const v1::ListRequestsRequest* request,
                                                     v1::ListRequestsResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "ListRequests", Role::kViewer);
      !status.ok()) {
    return Answer(call, "ListRequests", status);
  }
  const auto list = [&]() -> absl::StatusOr<v1::ListRequestsResponse> {
    KVTIER_RETURN_IF_ERROR(CheckListRequests(*request));
    KVTIER_ASSIGN_OR_RETURN(const std::vector<RequestSnapshot> requests,
                            context_->node->Requests(request->cache()));
    return RequestsToProto(requests, *request);
  };
  absl::StatusOr<v1::ListRequestsResponse> page = list();
  if (page.ok()) *response = *std::move(page);
  return Answer(call, "ListRequests", page.status());
}

grpc::ServerUnaryReactor* AdminService::GetNodeInfo(grpc::CallbackServerContext* call,
                                                    const v1::GetNodeInfoRequest* /*request*/,
                                                    v1::GetNodeInfoResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "GetNodeInfo", Role::kViewer);
      !status.ok()) {
    return Answer(call, "GetNodeInfo", status);
  }
  const Node& node = *context_->node;
  response->set_version(context_->version);
  response->set_boot_id(node.boot_id());
  *response->mutable_start_time() = ToProto(node.start_time());
  for (const DeviceInfo& device : context_->devices) {
    v1::DeviceInfo* info = response->add_devices();
    info->set_uuid(device.uuid);
    info->set_name(device.name);
    info->set_backend(BackendName(device.kind));
    info->set_memory_bytes(device.memory_bytes);
    info->set_used_bytes(node.DeviceBytesUsed(device.uuid));
  }
  *response->mutable_pool() = ToProto(context_->pool->stats());
  for (const std::string& address : context_->listen_addresses()) {
    response->add_listen_addresses(address);
  }
  response->set_pid(static_cast<int32_t>(getpid()));
  response->set_metrics_address(context_->metrics_address());
  response->set_not_ready_reason(context_->not_ready_reason());
  const NodeLimits limits = node.limits();
  response->set_sessions_max(limits.sessions_max);
  response->set_caches_max(limits.caches_max);
  response->set_sessions_per_uid_max(limits.user_quota.sessions_max);
  response->set_caches_per_uid_max(limits.user_quota.caches_max);
  response->set_pool_bytes_per_uid_max(limits.user_quota.pool_bytes_max);
  return Answer(call, "GetNodeInfo", absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* call,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  if (absl::Status status = context_->access->CheckRole(*call, "Drain", Role::kOperator);
      !status.ok()) {
    return Answer(call, "Drain", status);
  }
  if (absl::Status status = CheckMessage(request->message()); !status.ok()) {
    return Answer(call, "Drain", status);
  }
  context_->log->Event("drain",
                       {{"by", context_->access->NameOf(*call)}, {"message", request->message()}});
  context_->drain(request->message());
  response->set_sessions(static_cast<int32_t>(context_->node->Sessions().size()));
  return Answer(call, "Drain", absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::EvictSession(grpc::CallbackServerContext* call,
                                                     const v1::EvictSessionRequest* request,
                                                     v1::EvictSessionResponse* /*response*/) {
  if (absl::Status status = context_->access->CheckRole(*call, "EvictSession", Role::kOperator);
      !status.ok()) {
    return Answer(call, "EvictSession", status);
  }
  absl::Status status = CheckMessage(request->message());
  if (status.ok()) status = context_->node->EvictSession(request->session_id(), request->message());
  context_->log->Event("evict_session", {{"by", context_->access->NameOf(*call)},
                                         {"session_id", request->session_id()},
                                         {"message", request->message()},
                                         {"status", absl::StatusCodeToString(status.code())}});
  return Answer(call, "EvictSession", status);
}

}  // namespace kvtier
