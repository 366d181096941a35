// kvtier.v1.KvTierAdmin on gRPC's callback API. Every call is answered in the reaction: reading
// the node waits for no device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/access.h"
#include "server/service/call_log.h"
#include "server/service/control_executor.h"
#include "server/service/log.h"
#include "server/service/receiving_handler.h"
#include "server/service/recent_stats.h"
#include "server/service/stats_history.h"
#include "server/service/watch_stats_call.h"
#include "server/session/node.h"

namespace kvtier {

// Everything must outlive the last call.
struct AdminContext {
  Node* node = nullptr;
  const HostPool* pool = nullptr;
  const Log* log = nullptr;
  CallLog* call_log = nullptr;
  const StatsHistory* history = nullptr;
  const ControlExecutor* executor = nullptr;
  const AccessControl* access = nullptr;
  std::string version;
  std::vector<DeviceInfo> devices;
  std::function<std::vector<std::string>()> listen_addresses;
  std::function<std::string()> metrics_address;
  std::function<std::string()> not_ready_reason;  // "": ready
  // Readiness off, then the node drains.
  std::function<void(absl::string_view message)> drain;
};

class AdminService final : public v1::KvTierAdmin::CallbackService {
 public:
  AdminService(const CallDoor& door, const AdminContext* context);

  // What GetStats answers. `cache` empty: all. Errors: CACHE_UNKNOWN.
  absl::StatusOr<v1::GetStatsResponse> ReadStats(const std::string& cache) const;

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override;
  grpc::ServerWriteReactor<v1::GetStatsResponse>* WatchStats(
      grpc::CallbackServerContext* call, const v1::WatchStatsRequest* request) override;
  grpc::ServerUnaryReactor* ListCaches(grpc::CallbackServerContext* call,
                                       const v1::ListCachesRequest* request,
                                       v1::ListCachesResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* call,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext* call,
                                         const v1::ListRequestsRequest* request,
                                         v1::ListRequestsResponse* response) override;
  grpc::ServerUnaryReactor* GetNodeInfo(grpc::CallbackServerContext* call,
                                        const v1::GetNodeInfoRequest* request,
                                        v1::GetNodeInfoResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* EvictSession(grpc::CallbackServerContext* call,
                                         const v1::EvictSessionRequest* request,
                                         v1::EvictSessionResponse* response) override;

 private:
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* call, const char* method,
                                   const absl::Status& status) const;

  const AdminContext* const context_;
  // However many watch, and how often: about twenty looks a second.
  RecentStats watched_{kWatchIntervalMin / 2};
};

}  // namespace kvtier
