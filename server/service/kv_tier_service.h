// kvtier.v1.KvTier on gRPC's callback API. No reaction blocks: verbs that may wait for device
// streams run on the control executor, unless they find that they need not; the others enqueue and
// answer from the completion.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/core/clock.h"
#include "server/service/access.h"
#include "server/service/control_executor.h"
#include "server/service/data_plane.h"
#include "server/service/receiving_handler.h"
#include "server/service/session_call.h"
#include "server/service/unread_answers.h"
#include "server/session/node.h"

namespace kvtier {

class KvTierService final : public v1::KvTier::CallbackService {
 public:
  // Everything must outlive the last call.
  KvTierService(const CallDoor& door, const SessionCallContext* context, const Clock* clock,
                const AccessControl* access, ControlExecutor* executor);

  // ---- The lease.
  grpc::ServerWriteReactor<v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) override;

  // ---- Verbs that may wait.
  grpc::ServerUnaryReactor* AttachCache(grpc::CallbackServerContext* context,
                                        const v1::AttachCacheRequest* request,
                                        v1::AttachCacheResponse* response) override;
  grpc::ServerUnaryReactor* DetachCache(grpc::CallbackServerContext* context,
                                        const v1::DetachCacheRequest* request,
                                        v1::DetachCacheResponse* response) override;
  grpc::ServerUnaryReactor* AdmitRequest(grpc::CallbackServerContext* context,
                                         const v1::AdmitRequestRequest* request,
                                         v1::AdmitRequestResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseRequest(grpc::CallbackServerContext* context,
                                           const v1::ReleaseRequestRequest* request,
                                           v1::ReleaseRequestResponse* response) override;
  grpc::ServerUnaryReactor* AssignBlocks(grpc::CallbackServerContext* context,
                                         const v1::AssignBlocksRequest* request,
                                         v1::AssignBlocksResponse* response) override;
  grpc::ServerUnaryReactor* ListKeptBlocks(grpc::CallbackServerContext* context,
                                           const v1::ListKeptBlocksRequest* request,
                                           v1::ListKeptBlocksResponse* response) override;
  grpc::ServerUnaryReactor* FreeBlocks(grpc::CallbackServerContext* context,
                                       const v1::FreeBlocksRequest* request,
                                       v1::FreeBlocksResponse* response) override;
  grpc::ServerUnaryReactor* InvalidateBlocks(grpc::CallbackServerContext* context,
                                             const v1::InvalidateBlocksRequest* request,
                                             v1::InvalidateBlocksResponse* response) override;

  // ---- The data plane.
  grpc::ServerUnaryReactor* SwapIn(grpc::CallbackServerContext* context,
                                   const v1::SwapInRequest* request,
                                   v1::SwapInResponse* response) override;
  grpc::ServerUnaryReactor* ReplayPlan(grpc::CallbackServerContext* context,
                                       const v1::ReplayPlanRequest* request,
                                       v1::ReplayPlanResponse* response) override;
  grpc::ServerUnaryReactor* Backup(grpc::CallbackServerContext* context,
                                   const v1::BackupRequest* request,
                                   v1::BackupResponse* response) override;
  grpc::ServerUnaryReactor* WaitTicket(grpc::CallbackServerContext* context,
                                       const v1::WaitTicketRequest* request,
                                       v1::WaitTicketResponse* response) override;
  grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* RunSteps(
      grpc::CallbackServerContext* context) override;

 private:
  // May a call that has its entry in open_calls begin? Whose it is.
  absl::StatusOr<WorkerCaller> CheckStart(const grpc::CallbackServerContext& context,
                                          const std::string& session_id, absl::Time deadline) const;
  // A place for an answer of `bytes` at most. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED, and then
  // *place stays as it is.
  absl::Status TakePlace(const WorkerCaller& caller, const std::string& session_id, int64_t bytes,
                         std::shared_ptr<UnreadAnswers::Place>* place) const;
  // Where a verb runs that may wait.
  enum class Where {
    kExecutor,
    kHereIfIdle,  // it is tried on gRPC's thread first, without patience
  };
  struct ControlCall {
    const char* name;
    const std::string& session_id;
    const std::string& cache;
    Where where = Where::kExecutor;
    absl::Duration duration_max = kCallDurationMax;
    int64_t answer_bytes_max = 0;  // of an answer that may be so large that it takes a place
  };
  // Fills the response if it succeeds.
  using ControlVerb = std::function<absl::Status(const Patience& patience)>;
  grpc::ServerUnaryReactor* RunControl(grpc::CallbackServerContext* context,
                                       const ControlCall& control, ControlVerb verb);
  // Calls `start(deadline, done)` unless the deadline has passed.
  template <typename Response, typename Start>
  grpc::ServerUnaryReactor* RunData(grpc::CallbackServerContext* context, const char* name,
                                    const std::string& session_id, Response* response,
                                    const Start& start);

  // The same, with a place for the answer.
  grpc::ServerUnaryReactor* RunSwapIn(grpc::CallbackServerContext* context,
                                      const v1::SwapInRequest& request,
                                      v1::SwapInResponse* response);

  // Logs once that workers of a second user have got the descriptor of the pool.
  void NoteUser(int32_t uid);

  static constexpr int32_t kNoUser = -1;
  const SessionCallContext* const context_;
  Node* const node_;
  const Clock* const clock_;
  const AccessControl* const access_;
  ControlExecutor* const executor_;
  const DataPlane data_plane_;
  std::atomic<int32_t> first_uid_{kNoUser};
  std::atomic<bool> warned_{false};
};

}  // namespace kvtier
