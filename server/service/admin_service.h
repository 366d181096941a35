// kvtier.v1.KvTierAdmin: what operators call. None of it waits for a device.
#pragma once

#include <string>
#include <vector>

#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/session/node.h"

namespace kvtier {

struct AdminServiceOptions {
  std::string version;
  std::vector<std::string> listen_addresses;
};

class AdminService final : public v1::KvTierAdmin::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  // All must outlive the service.
  AdminService(AdminServiceOptions options, Node* node, const HostPool* pool,
               const DeviceBackend* backend);

  Unary* GetStats(Context* context, const v1::GetStatsRequest* request,
                  v1::GetStatsResponse* response) override;
  grpc::ServerWriteReactor<v1::GetStatsResponse>* WatchStats(
      Context* context, const v1::WatchStatsRequest* request) override;
  Unary* ListCaches(Context* context, const v1::ListCachesRequest* request,
                    v1::ListCachesResponse* response) override;
  Unary* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                      v1::ListSessionsResponse* response) override;
  Unary* ListRequests(Context* context, const v1::ListRequestsRequest* request,
                      v1::ListRequestsResponse* response) override;
  Unary* GetNodeInfo(Context* context, const v1::GetNodeInfoRequest* request,
                     v1::GetNodeInfoResponse* response) override;
  Unary* Drain(Context* context, const v1::DrainRequest* request,
               v1::DrainResponse* response) override;
  Unary* EvictSession(Context* context, const v1::EvictSessionRequest* request,
                      v1::EvictSessionResponse* response) override;

  // What GetStats and WatchStats answer.
  absl::Status FillStats(const std::string& cache, v1::GetStatsResponse* response) const;

 private:
  const AdminServiceOptions options_;
  Node* const node_;
  const HostPool* const pool_;
  const DeviceBackend* const backend_;
};

}  // namespace kvtier
