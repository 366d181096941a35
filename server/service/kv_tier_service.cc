#include "server/service/kv_tier_service.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "server/core/status_macros.h"
#include "server/service/call_deadline.h"
#include "server/service/from_proto.h"
#include "server/service/retention_proto.h"
#include "server/service/run_steps_call.h"
#include "server/service/to_proto.h"
#include "server/service/unary_call.h"

namespace kvtier {
namespace {

template <typename Field>
std::vector<int32_t> VectorOf(const Field& field) {
  return {field.begin(), field.end()};
}

}  // namespace

KvTierService::KvTierService(const SessionCallContext* context, const Clock* clock,
                             const PeerTable* peers, ControlExecutor* executor)
    : context_(context),
      node_(context->node),
      clock_(clock),
      peers_(peers),
      executor_(executor),
      data_plane_(context->node, clock) {}

absl::Status KvTierService::CheckStart(absl::Time deadline) const {
  KVTIER_RETURN_IF_ERROR(context_->open_calls->CheckOpen());
  return CheckNotExpired(deadline, *clock_);
}

grpc::ServerUnaryReactor* KvTierService::RunControl(grpc::CallbackServerContext* context,
                                                    const char* name, ControlVerb verb) {
  auto* call = new UnaryCall(context_->open_calls, {context_->call_log, context, name},
                             UnaryCall::OnCancellation::kTell);
  const absl::Time deadline = DeadlineOf(*context, *clock_);
  const auto run = [this, answer = call->answer(), deadline, verb = std::move(verb)] {
    absl::Status status = CheckNotExpired(deadline, *clock_);
    // Nobody is there to hear of it: whatever it would have changed stays as it was.
    if (answer->cancelled()) status = absl::CancelledError("the call was cancelled");
    if (status.ok()) status = verb(deadline);
    answer->Finish(ToWire(status));
  };
  absl::Status status = CheckStart(deadline);
  if (status.ok()) status = executor_->Submit(run);
  if (!status.ok()) call->answer()->Finish(ToWire(status));
  return call;
}

template <typename Response, typename Start>
grpc::ServerUnaryReactor* KvTierService::RunData(grpc::CallbackServerContext* context,
                                                 const char* name, Response* response,
                                                 const Start& start) {
  auto* call = new UnaryCall(context_->open_calls, {context_->call_log, context, name},
                             UnaryCall::OnCancellation::kAnswer);
  DataPlane::Done<Response> done = AnswerInto(call->answer(), response);
  const absl::Time deadline = DeadlineOf(*context, *clock_);
  if (absl::Status status = CheckStart(deadline); !status.ok()) {
    done(status);
  } else {
    start(deadline, std::move(done));
  }
  return call;
}

grpc::ServerWriteReactor<v1::SessionEvent>* KvTierService::OpenSession(
    grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
  return NewSessionCall(context_, {context_->call_log, context, "OpenSession"},
                        peers_->Find(context->peer()), *request);
}

grpc::ServerUnaryReactor* KvTierService::AttachCache(grpc::CallbackServerContext* context,
                                                     const v1::AttachCacheRequest* request,
                                                     v1::AttachCacheResponse* response) {
  return RunControl(
      context, "AttachCache", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckCacheName(request->cache()));
        KVTIER_ASSIGN_OR_RETURN(const CacheLayout layout, LayoutFromProto(*request));
        KVTIER_ASSIGN_OR_RETURN(
            const AttachResult result,
            node_->AttachCache(request->session_id(), request->cache(), layout,
                               request->device_uuid(), deadline, AttachOptionsFromProto(*request)));
        *response = ToProto(result);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::DetachCache(grpc::CallbackServerContext* context,
                                                     const v1::DetachCacheRequest* request,
                                                     v1::DetachCacheResponse* response) {
  return RunControl(
      context, "DetachCache", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_ASSIGN_OR_RETURN(const bool ended, node_->DetachCache(request->session_id(),
                                                                     request->cache(), deadline));
        response->set_cache_ended(ended);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::AdmitRequest(grpc::CallbackServerContext* context,
                                                      const v1::AdmitRequestRequest* request,
                                                      v1::AdmitRequestResponse* response) {
  return RunControl(
      context, "AdmitRequest", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckAdmitRequest(*request));
        KVTIER_ASSIGN_OR_RETURN(
            const int32_t region,
            node_->AdmitRequest(request->session_id(), request->cache(), request->request_id(),
                                request->reserve_blocks(), deadline));
        response->set_region(region);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::ReleaseRequest(grpc::CallbackServerContext* context,
                                                        const v1::ReleaseRequestRequest* request,
                                                        v1::ReleaseRequestResponse* response) {
  return RunControl(
      context, "ReleaseRequest", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_ASSIGN_OR_RETURN(const int32_t freed,
                                node_->ReleaseRequest(request->session_id(), request->cache(),
                                                      request->request_id(), deadline));
        response->set_blocks_freed(freed);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::AssignBlocks(grpc::CallbackServerContext* context,
                                                      const v1::AssignBlocksRequest* request,
                                                      v1::AssignBlocksResponse* response) {
  return RunControl(
      context, "AssignBlocks", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckAssignBlocks(*request));
        KVTIER_ASSIGN_OR_RETURN(
            const AssignResult result,
            node_->AssignBlocks(request->session_id(), request->cache(), request->request_id(),
                                request->count(), VectorOf(request->shared_block_ids()),
                                VectorOf(request->shared_generations()), deadline,
                                {request->block_tags().begin(), request->block_tags().end()}));
        *response = ToProto(result);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::ListKeptBlocks(grpc::CallbackServerContext* context,
                                                        const v1::ListKeptBlocksRequest* request,
                                                        v1::ListKeptBlocksResponse* response) {
  return RunControl(context, "ListKeptBlocks",
                    [this, request, response](absl::Time /*deadline*/) -> absl::Status {
                      KVTIER_ASSIGN_OR_RETURN(const KeptPage page, KeptPageFromProto(*request));
                      KVTIER_ASSIGN_OR_RETURN(
                          const std::vector<KeptBlockInfo> blocks,
                          node_->ListKeptBlocks(request->session_id(), request->cache(), page.first,
                                                page.size + 1));
                      *response = KeptBlocksToProto(blocks, page.size);
                      return absl::OkStatus();
                    });
}

grpc::ServerUnaryReactor* KvTierService::FreeBlocks(grpc::CallbackServerContext* context,
                                                    const v1::FreeBlocksRequest* request,
                                                    v1::FreeBlocksResponse* response) {
  return RunControl(
      context, "FreeBlocks", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckBlockList(request->block_ids_size()));
        KVTIER_ASSIGN_OR_RETURN(
            const int32_t freed,
            node_->FreeBlocks(request->session_id(), request->cache(), request->request_id(),
                              VectorOf(request->block_ids()), deadline));
        response->set_blocks_freed(freed);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::InvalidateBlocks(
    grpc::CallbackServerContext* context, const v1::InvalidateBlocksRequest* request,
    v1::InvalidateBlocksResponse* response) {
  return RunControl(
      context, "InvalidateBlocks", [this, request, response](absl::Time deadline) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckBlockList(request->block_ids_size()));
        KVTIER_ASSIGN_OR_RETURN(const int64_t dropped,
                                node_->InvalidateBlocks(request->session_id(), request->cache(),
                                                        VectorOf(request->block_ids()), deadline));
        response->set_invalidated_copies(dropped);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::SwapIn(grpc::CallbackServerContext* context,
                                                const v1::SwapInRequest* request,
                                                v1::SwapInResponse* response) {
  return RunData(context, "SwapIn", response,
                 [&](absl::Time, auto done) { data_plane_.SwapIn(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::ReplayPlan(grpc::CallbackServerContext* context,
                                                    const v1::ReplayPlanRequest* request,
                                                    v1::ReplayPlanResponse* response) {
  return RunData(context, "ReplayPlan", response,
                 [&](absl::Time, auto done) { data_plane_.ReplayPlan(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::Backup(grpc::CallbackServerContext* context,
                                                const v1::BackupRequest* request,
                                                v1::BackupResponse* response) {
  return RunData(context, "Backup", response,
                 [&](absl::Time, auto done) { data_plane_.Backup(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::WaitTicket(grpc::CallbackServerContext* context,
                                                    const v1::WaitTicketRequest* request,
                                                    v1::WaitTicketResponse* response) {
  return RunData(context, "WaitTicket", response, [&](absl::Time deadline, auto done) {
    data_plane_.WaitTicket(*request, deadline, std::move(done));
  });
}

grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* KvTierService::RunSteps(
    grpc::CallbackServerContext* context) {
  return NewRunStepsCall(&data_plane_, context_->open_calls,
                         {context_->call_log, context, "RunSteps"});
}

}  // namespace kvtier
