#include "server/service/kv_tier_service.h"

#include <utility>
#include <vector>

#include "server/core/status_macros.h"
#include "server/service/call.h"
#include "server/service/convert.h"
#include "server/service/session_reactor.h"
#include "server/service/steps.h"

namespace kvtier {
namespace {

template <typename Repeated>
std::vector<int32_t> ListOf(const Repeated& repeated) {
  return {repeated.begin(), repeated.end()};
}

// A unary call that a step answers.
StepDone FinishWith(grpc::ServerUnaryReactor* reactor) {
  return [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); };
}

}  // namespace

KvTierService::KvTierService(KvTierServiceOptions options, Node* node, ControlExecutor* executor)
    : options_(std::move(options)), node_(node), executor_(executor) {}

grpc::ServerWriteReactor<v1::SessionEvent>* KvTierService::OpenSession(
    Context*, const v1::OpenSessionRequest* request) {
  return NewSessionReactor(options_, node_, *request);
}

KvTierService::Unary* KvTierService::AttachCache(Context* context,
                                                 const v1::AttachCacheRequest* request,
                                                 v1::AttachCacheResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(const CacheLayout layout, LayoutFromProto(request->layout()));
    KVTIER_ASSIGN_OR_RETURN(const AttachResult result,
                            node_->AttachCache(request->session_id(), request->cache(), layout,
                                               request->device_uuid(), deadline));
    *response = AttachToProto(result);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::DetachCache(Context* context,
                                                 const v1::DetachCacheRequest* request,
                                                 v1::DetachCacheResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(
        const bool ended, node_->DetachCache(request->session_id(), request->cache(), deadline));
    response->set_cache_ended(ended);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::AdmitRequest(Context* context,
                                                  const v1::AdmitRequestRequest* request,
                                                  v1::AdmitRequestResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(
        const int32_t region,
        node_->AdmitRequest(request->session_id(), request->cache(), request->request_id(),
                            request->reserve_blocks(), deadline));
    response->set_region(region);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::ReleaseRequest(Context* context,
                                                    const v1::ReleaseRequestRequest* request,
                                                    v1::ReleaseRequestResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(const int32_t freed,
                            node_->ReleaseRequest(request->session_id(), request->cache(),
                                                  request->request_id(), deadline));
    response->set_blocks_freed(freed);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::AssignBlocks(Context* context,
                                                  const v1::AssignBlocksRequest* request,
                                                  v1::AssignBlocksResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(
        const AssignResult result,
        node_->AssignBlocks(request->session_id(), request->cache(), request->request_id(),
                            request->count(), ListOf(request->shared_block_ids()),
                            ListOf(request->shared_generations()), deadline));
    response->mutable_block_ids()->Add(result.block_ids.begin(), result.block_ids.end());
    response->mutable_generations()->Add(result.generations.begin(), result.generations.end());
    response->set_table_index(result.table_index);
    response->set_invalidated_copies(result.invalidated_copies);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::FreeBlocks(Context* context,
                                                const v1::FreeBlocksRequest* request,
                                                v1::FreeBlocksResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(
        const int32_t freed,
        node_->FreeBlocks(request->session_id(), request->cache(), request->request_id(),
                          ListOf(request->block_ids()), deadline));
    response->set_blocks_freed(freed);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::InvalidateBlocks(Context* context,
                                                      const v1::InvalidateBlocksRequest* request,
                                                      v1::InvalidateBlocksResponse* response) {
  return RunControl(executor_, context, [=, this](absl::Time deadline) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(
        const int64_t dropped,
        node_->InvalidateBlocks(request->session_id(), request->cache(),
                                ListOf(request->block_ids()), deadline));
    response->set_invalidated_copies(dropped);
    return absl::OkStatus();
  });
}

KvTierService::Unary* KvTierService::SwapIn(Context* context, const v1::SwapInRequest* request,
                                            v1::SwapInResponse* response) {
  Unary* reactor = context->DefaultReactor();
  StartSwapIn(node_, *request, response, FinishWith(reactor));
  return reactor;
}

KvTierService::Unary* KvTierService::ReplayPlan(Context* context,
                                                const v1::ReplayPlanRequest* request,
                                                v1::ReplayPlanResponse* response) {
  Unary* reactor = context->DefaultReactor();
  StartReplayPlan(node_, *request, response, FinishWith(reactor));
  return reactor;
}

KvTierService::Unary* KvTierService::Backup(Context* context, const v1::BackupRequest* request,
                                            v1::BackupResponse* response) {
  Unary* reactor = context->DefaultReactor();
  StartBackup(node_, *request, response, FinishWith(reactor));
  return reactor;
}

KvTierService::Unary* KvTierService::WaitTicket(Context* context,
                                                const v1::WaitTicketRequest* request,
                                                v1::WaitTicketResponse* response) {
  Unary* reactor = context->DefaultReactor();
  StartWaitTicket(node_, *request, DeadlineOf(*context), response, FinishWith(reactor));
  return reactor;
}

grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* KvTierService::RunSteps(
    Context*) {
  return NewRunStepsReactor(node_);
}

}  // namespace kvtier
