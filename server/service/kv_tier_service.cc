#include "server/service/kv_tier_service.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "proto/support/wire_limits.h"
#include "server/core/status_macros.h"
#include "server/service/answer_size.h"
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

UnreadAnswers::Reader ReaderOf(const WorkerCaller& caller) {
  return {.connection = caller.connection, .peer = CountedAs(caller.peer)};
}

}  // namespace

KvTierService::KvTierService(const CallDoor& door, const SessionCallContext* context,
                             const Clock* clock, const AccessControl* access,
                             ControlExecutor* executor)
    : context_(context),
      node_(context->node),
      clock_(clock),
      access_(access),
      executor_(executor),
      data_plane_(context->node, clock) {
  const google::protobuf::ServiceDescriptor& service =
      *v1::OpenSessionRequest::descriptor()->file()->FindServiceByName("KvTier");
  const auto receive = [&](const char* name, auto method,
                           int64_t bytes_max = wire::kSmallRequestBytesMax) {
    MarkMethodStreamed(service.FindMethodByName(name)->index(),
                       NewReceivingHandler(door, name, this, method, {.bytes_max = bytes_max}));
  };
  receive("OpenSession", &KvTierService::OpenSession);
  receive("AttachCache", &KvTierService::AttachCache, wire::kAttachRequestBytesMax);
  receive("DetachCache", &KvTierService::DetachCache);
  receive("AdmitRequest", &KvTierService::AdmitRequest);
  receive("ReleaseRequest", &KvTierService::ReleaseRequest);
  receive("AssignBlocks", &KvTierService::AssignBlocks, wire::kMessageBytesMax);
  receive("ListKeptBlocks", &KvTierService::ListKeptBlocks);
  receive("FreeBlocks", &KvTierService::FreeBlocks, wire::kBlockListRequestBytesMax);
  receive("InvalidateBlocks", &KvTierService::InvalidateBlocks, wire::kBlockListRequestBytesMax);
  receive("SwapIn", &KvTierService::SwapIn, wire::kSwapInRequestBytesMax);
  receive("ReplayPlan", &KvTierService::ReplayPlan);
  receive("Backup", &KvTierService::Backup, wire::kBackupRequestBytesMax);
  receive("WaitTicket", &KvTierService::WaitTicket);
  receive("RunSteps", &KvTierService::RunSteps);
}

absl::StatusOr<WorkerCaller> KvTierService::CheckStart(const grpc::CallbackServerContext& context,
                                                       const std::string& session_id,
                                                       absl::Time deadline) const {
  KVTIER_ASSIGN_OR_RETURN(WorkerCaller caller, access_->WorkerOf(context));
  KVTIER_RETURN_IF_ERROR(node_->CheckCaller(session_id, caller.peer));
  KVTIER_RETURN_IF_ERROR(context_->open_calls->CheckOpen());
  KVTIER_RETURN_IF_ERROR(CheckNotExpired(deadline, *clock_));
  return caller;
}

absl::Status KvTierService::TakePlace(const WorkerCaller& caller, const std::string& session_id,
                                      int64_t bytes,
                                      std::shared_ptr<UnreadAnswers::Place>* place) const {
  KVTIER_ASSIGN_OR_RETURN(*place,
                          context_->unread_answers->Take(ReaderOf(caller), session_id, bytes));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* KvTierService::RunControl(grpc::CallbackServerContext* context,
                                                    const ControlCall& control, ControlVerb verb) {
  auto* call = new UnaryCall(context_->open_calls, {context_->call_log, context, control.name},
                             UnaryCall::OnCancellation::kTell);
  const absl::Time deadline = DeadlineOf(*context, *clock_, control.duration_max);
  const absl::StatusOr<WorkerCaller> caller = CheckStart(*context, control.session_id, deadline);
  absl::Status status = caller.status();
  std::shared_ptr<UnreadAnswers::Place> place;
  if (status.ok() && control.answer_bytes_max > 0) {
    status = TakePlace(*caller, control.session_id, control.answer_bytes_max, &place);
    call->Hold(place);
  }
  auto finish = [answer = call->answer(),
                 place = std::move(place)](const absl::Status& status) mutable {
    if (place != nullptr) place->SetReady();
    // The call may be over before `Finish` returns; then the place is free again.
    place.reset();
    answer->Finish(ToWire(status));
  };
  if (status.ok() && control.where == Where::kHereIfIdle) {
    bool gave_up = false;
    status = verb(Patience::None(deadline, &gave_up));
    if (!gave_up) {
      finish(status);
      return call;
    }
    status = absl::OkStatus();  // nothing has changed
  }
  auto run = [this, answer = call->answer(), deadline, verb = std::move(verb),
              finish = std::move(finish)]() mutable {
    if (!answer->Claim()) return;  // a shutdown did not wait for its turn
    absl::Status status = CheckNotExpired(deadline, *clock_);
    // Nobody is there to hear of it: whatever it would have changed stays as it was.
    if (answer->cancelled()) status = absl::CancelledError("the call was cancelled");
    if (status.ok()) status = verb(deadline);
    finish(status);
  };
  if (status.ok()) {
    call->MayEnd();
    status = executor_->Submit({.cache = control.cache,
                                .caller = CountedAs(caller->peer),
                                .may_last = control.duration_max > kCallDurationMax},
                               std::move(run));
  }
  if (!status.ok()) call->answer()->End(status);
  return call;
}

template <typename Response, typename Start>
grpc::ServerUnaryReactor* KvTierService::RunData(grpc::CallbackServerContext* context,
                                                 const char* name, const std::string& session_id,
                                                 Response* response, const Start& start) {
  auto* call = new UnaryCall(context_->open_calls, {context_->call_log, context, name},
                             UnaryCall::OnCancellation::kAnswer);
  DataPlane::Done<Response> done = AnswerInto(call->answer(), response);
  const absl::Time deadline = DeadlineOf(*context, *clock_);
  if (const auto caller = CheckStart(*context, session_id, deadline); !caller.ok()) {
    done(caller.status());
  } else {
    start(deadline, std::move(done));
  }
  return call;
}

grpc::ServerUnaryReactor* KvTierService::RunSwapIn(grpc::CallbackServerContext* context,
                                                   const v1::SwapInRequest& request,
                                                   v1::SwapInResponse* response) {
  auto* call = new UnaryCall(context_->open_calls, {context_->call_log, context, "SwapIn"},
                             UnaryCall::OnCancellation::kAnswer);
  DataPlane::Done<v1::SwapInResponse> done = AnswerInto(call->answer(), response);
  const absl::StatusOr<WorkerCaller> caller =
      CheckStart(*context, request.session_id(), DeadlineOf(*context, *clock_));
  absl::Status status = caller.status();
  std::shared_ptr<UnreadAnswers::Place> place;
  if (status.ok()) {
    status = TakePlace(*caller, request.session_id(), data_plane_.AnswerBytesMax(request), &place);
  }
  if (!status.ok()) {
    done(status);
    return call;
  }
  call->Hold(place);
  data_plane_.SwapIn(
      request, [place, done = std::move(done)](absl::StatusOr<v1::SwapInResponse> result) mutable {
        place->SetReady();
        // The call may be over before `done` returns; then the place is free again.
        place.reset();
        done(std::move(result));
      });
  return call;
}

grpc::ServerWriteReactor<v1::SessionEvent>* KvTierService::OpenSession(
    grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
  const absl::StatusOr<WorkerCaller> caller = access_->WorkerOf(*context);
  return NewSessionCall(context_, {context_->call_log, context, "OpenSession"},
                        caller.ok() ? absl::StatusOr<Peer>(caller->peer) : caller.status(),
                        *request);
}

grpc::ServerUnaryReactor* KvTierService::AttachCache(grpc::CallbackServerContext* context,
                                                     const v1::AttachCacheRequest* request,
                                                     v1::AttachCacheResponse* response) {
  const int32_t uid = access_->WorkerOf(*context).value_or(WorkerCaller()).peer.uid;
  return RunControl(context,
                    {.name = "AttachCache",
                     .session_id = request->session_id(),
                     .cache = request->cache(),
                     .duration_max = kAttachDurationMax},
                    [this, request, response, uid](const Patience& patience) -> absl::Status {
                      KVTIER_RETURN_IF_ERROR(CheckCacheName(request->cache()));
                      KVTIER_ASSIGN_OR_RETURN(const CacheLayout layout, LayoutFromProto(*request));
                      KVTIER_ASSIGN_OR_RETURN(
                          const AttachResult result,
                          node_->AttachCache(request->session_id(), request->cache(), layout,
                                             request->device_uuid(), patience.deadline(),
                                             AttachOptionsFromProto(*request)));
                      *response = ToProto(result);
                      NoteUser(uid);
                      return absl::OkStatus();
                    });
}

void KvTierService::NoteUser(int32_t uid) {
  int32_t first = kNoUser;
  if (first_uid_.compare_exchange_strong(first, uid) || first == uid) return;
  if (warned_.exchange(true)) return;
  context_->log->Event(LogLevel::kWarning, "users_share_the_pool",
                       {{"uid", first},
                        {"other_uid", uid},
                        {"why", "each can map the rows of both: docs/SECURITY.md"}});
}

grpc::ServerUnaryReactor* KvTierService::DetachCache(grpc::CallbackServerContext* context,
                                                     const v1::DetachCacheRequest* request,
                                                     v1::DetachCacheResponse* response) {
  return RunControl(
      context,
      {.name = "DetachCache", .session_id = request->session_id(), .cache = request->cache()},
      [this, request, response](const Patience& patience) -> absl::Status {
        KVTIER_ASSIGN_OR_RETURN(
            const bool ended,
            node_->DetachCache(request->session_id(), request->cache(), patience.deadline()));
        response->set_cache_ended(ended);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::AdmitRequest(grpc::CallbackServerContext* context,
                                                      const v1::AdmitRequestRequest* request,
                                                      v1::AdmitRequestResponse* response) {
  return RunControl(
      context,
      {.name = "AdmitRequest",
       .session_id = request->session_id(),
       .cache = request->cache(),
       .where = Where::kHereIfIdle},
      [this, request, response](const Patience& patience) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckAdmitRequest(*request));
        KVTIER_ASSIGN_OR_RETURN(
            const int32_t region,
            node_->AdmitRequest(request->session_id(), request->cache(), request->request_id(),
                                request->reserve_blocks(), patience));
        response->set_region(region);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::ReleaseRequest(grpc::CallbackServerContext* context,
                                                        const v1::ReleaseRequestRequest* request,
                                                        v1::ReleaseRequestResponse* response) {
  return RunControl(context,
                    {.name = "ReleaseRequest",
                     .session_id = request->session_id(),
                     .cache = request->cache(),
                     .where = Where::kHereIfIdle},
                    [this, request, response](const Patience& patience) -> absl::Status {
                      KVTIER_ASSIGN_OR_RETURN(
                          const int32_t freed,
                          node_->ReleaseRequest(request->session_id(), request->cache(),
                                                request->request_id(), patience));
                      response->set_blocks_freed(freed);
                      return absl::OkStatus();
                    });
}

grpc::ServerUnaryReactor* KvTierService::AssignBlocks(grpc::CallbackServerContext* context,
                                                      const v1::AssignBlocksRequest* request,
                                                      v1::AssignBlocksResponse* response) {
  return RunControl(
      context,
      {.name = "AssignBlocks",
       .session_id = request->session_id(),
       .cache = request->cache(),
       .where = Where::kHereIfIdle,
       .answer_bytes_max = AnswerBytesMax(*request)},
      [this, request, response](const Patience& patience) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckAssignBlocks(*request));
        KVTIER_ASSIGN_OR_RETURN(
            const AssignResult result,
            node_->AssignBlocks(request->session_id(), request->cache(), request->request_id(),
                                request->count(), VectorOf(request->shared_block_ids()),
                                VectorOf(request->shared_generations()), patience,
                                {request->block_tags().begin(), request->block_tags().end()}));
        *response = ToProto(result);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::ListKeptBlocks(grpc::CallbackServerContext* context,
                                                        const v1::ListKeptBlocksRequest* request,
                                                        v1::ListKeptBlocksResponse* response) {
  return RunControl(context,
                    {.name = "ListKeptBlocks",
                     .session_id = request->session_id(),
                     .cache = request->cache(),
                     .answer_bytes_max = AnswerBytesMax(*request)},
                    [this, request, response](const Patience& /*patience*/) -> absl::Status {
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
      context,
      {.name = "FreeBlocks",
       .session_id = request->session_id(),
       .cache = request->cache(),
       .where = Where::kHereIfIdle},
      [this, request, response](const Patience& patience) -> absl::Status {
        KVTIER_RETURN_IF_ERROR(CheckBlockList(request->block_ids_size()));
        KVTIER_ASSIGN_OR_RETURN(
            const int32_t freed,
            node_->FreeBlocks(request->session_id(), request->cache(), request->request_id(),
                              VectorOf(request->block_ids()), patience));
        response->set_blocks_freed(freed);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KvTierService::InvalidateBlocks(
    grpc::CallbackServerContext* context, const v1::InvalidateBlocksRequest* request,
    v1::InvalidateBlocksResponse* response) {
  return RunControl(context,
                    {.name = "InvalidateBlocks",
                     .session_id = request->session_id(),
                     .cache = request->cache(),
                     .where = Where::kHereIfIdle},
                    [this, request, response](const Patience& patience) -> absl::Status {
                      KVTIER_RETURN_IF_ERROR(CheckBlockList(request->block_ids_size()));
                      KVTIER_ASSIGN_OR_RETURN(
                          const int64_t dropped,
                          node_->InvalidateBlocks(request->session_id(), request->cache(),
                                                  VectorOf(request->block_ids()), patience));
                      response->set_invalidated_copies(dropped);
                      return absl::OkStatus();
                    });
}

grpc::ServerUnaryReactor* KvTierService::SwapIn(grpc::CallbackServerContext* context,
                                                const v1::SwapInRequest* request,
                                                v1::SwapInResponse* response) {
  if (request->has_inline_()) return RunSwapIn(context, *request, response);
  return RunData(context, "SwapIn", request->session_id(), response,
                 [&](absl::Time, auto done) { data_plane_.SwapIn(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::ReplayPlan(grpc::CallbackServerContext* context,
                                                    const v1::ReplayPlanRequest* request,
                                                    v1::ReplayPlanResponse* response) {
  return RunData(context, "ReplayPlan", request->session_id(), response,
                 [&](absl::Time, auto done) { data_plane_.ReplayPlan(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::Backup(grpc::CallbackServerContext* context,
                                                const v1::BackupRequest* request,
                                                v1::BackupResponse* response) {
  return RunData(context, "Backup", request->session_id(), response,
                 [&](absl::Time, auto done) { data_plane_.Backup(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* KvTierService::WaitTicket(grpc::CallbackServerContext* context,
                                                    const v1::WaitTicketRequest* request,
                                                    v1::WaitTicketResponse* response) {
  return RunData(context, "WaitTicket", request->session_id(), response,
                 [&](absl::Time deadline, auto done) {
                   data_plane_.WaitTicket(*request, deadline, std::move(done));
                 });
}

grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* KvTierService::RunSteps(
    grpc::CallbackServerContext* context) {
  const CallRecord record = {context_->call_log, context, "RunSteps"};
  const absl::StatusOr<WorkerCaller> caller = access_->WorkerOf(*context);
  if (!caller.ok()) return NewRefusedStepsCall(record, caller.status());
  return NewRunStepsCall(&data_plane_, context_->open_calls, context_->unread_answers,
                         ReaderOf(*caller), record,
                         [node = node_, peer = caller->peer](const std::string& session_id) {
                           return node->CheckCaller(session_id, peer);
                         });
}

}  // namespace kvtier
