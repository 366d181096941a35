// kvtier.v1.KvTier: what workers call.
//
// Reactions never block: control verbs run on the executor, data-plane verbs only enqueue and are
// answered by the device stream's completion.
#pragma once

#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/service/control_executor.h"
#include "server/session/node.h"

namespace kvtier {

struct KvTierServiceOptions {
  std::string version;
  std::string fd_socket_path;
  std::vector<DeviceInfo> devices;
};

class KvTierService final : public v1::KvTier::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  // `node` and `executor` must outlive the service.
  KvTierService(KvTierServiceOptions options, Node* node, ControlExecutor* executor);

  grpc::ServerWriteReactor<v1::SessionEvent>* OpenSession(
      Context* context, const v1::OpenSessionRequest* request) override;
  Unary* AttachCache(Context* context, const v1::AttachCacheRequest* request,
                     v1::AttachCacheResponse* response) override;
  Unary* DetachCache(Context* context, const v1::DetachCacheRequest* request,
                     v1::DetachCacheResponse* response) override;
  Unary* AdmitRequest(Context* context, const v1::AdmitRequestRequest* request,
                      v1::AdmitRequestResponse* response) override;
  Unary* ReleaseRequest(Context* context, const v1::ReleaseRequestRequest* request,
                        v1::ReleaseRequestResponse* response) override;
  Unary* AssignBlocks(Context* context, const v1::AssignBlocksRequest* request,
                      v1::AssignBlocksResponse* response) override;
  Unary* FreeBlocks(Context* context, const v1::FreeBlocksRequest* request,
                    v1::FreeBlocksResponse* response) override;
  Unary* InvalidateBlocks(Context* context, const v1::InvalidateBlocksRequest* request,
                          v1::InvalidateBlocksResponse* response) override;
  Unary* SwapIn(Context* context, const v1::SwapInRequest* request,
                v1::SwapInResponse* response) override;
  Unary* ReplayPlan(Context* context, const v1::ReplayPlanRequest* request,
                    v1::ReplayPlanResponse* response) override;
  Unary* Backup(Context* context, const v1::BackupRequest* request,
                v1::BackupResponse* response) override;
  Unary* WaitTicket(Context* context, const v1::WaitTicketRequest* request,
                    v1::WaitTicketResponse* response) override;
  grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* RunSteps(
      Context* context) override;

 private:
  const KvTierServiceOptions options_;
  Node* const node_;
  ControlExecutor* const executor_;
};

}  // namespace kvtier
