#include "server/service/steps.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/service/call.h"
#include "server/service/convert.h"

namespace kvtier {
namespace {

// Enqueues by `enqueue(done)`. With `wait` the answer comes with completion, else at once.
template <typename Response, typename Enqueue, typename Fill>
void Start(bool wait, Response* response, StepDone done, const Enqueue& enqueue, Fill fill) {
  OperationDone on_done;
  if (wait) {
    on_done = [response, done, fill](OperationOutcome outcome) {
      if (outcome.status.ok()) fill(outcome);
      done(outcome.status);
    };
  }
  const absl::StatusOr<int64_t> ticket = enqueue(std::move(on_done));
  if (!ticket.ok()) {
    done(ticket.status());
  } else if (!wait) {
    response->set_ticket(*ticket);
    done(absl::OkStatus());
  }
}

// Marks a response that has no more than these two fields.
template <typename Response>
auto FillCompleted(Response* response) {
  return [response](const OperationOutcome& outcome) {
    response->set_ticket(outcome.ticket);
    response->set_completed(true);
  };
}

}  // namespace

void StartSwapIn(Node* node, const v1::SwapInRequest& request, v1::SwapInResponse* response,
                 StepDone done) {
  absl::StatusOr<SwapInCall> call = SwapInFromProto(request);
  if (!call.ok()) return done(call.status());
  Start(
      request.wait() || request.has_inline_(), response, std::move(done),
      [&](OperationDone on_done) {
        return node->SwapIn(request.session_id(), *call, std::move(on_done));
      },
      [response](const OperationOutcome& outcome) { *response = SwapInToProto(outcome); });
}

void StartReplayPlan(Node* node, const v1::ReplayPlanRequest& request,
                     v1::ReplayPlanResponse* response, StepDone done) {
  Start(
      request.wait(), response, std::move(done),
      [&](OperationDone on_done) {
        return node->ReplayPlan(request.session_id(), ReplayPlanFromProto(request),
                                std::move(on_done));
      },
      FillCompleted(response));
}

void StartBackup(Node* node, const v1::BackupRequest& request, v1::BackupResponse* response,
                 StepDone done) {
  absl::StatusOr<BackupCall> call = BackupFromProto(request);
  if (!call.ok()) return done(call.status());
  Start(
      request.wait() || request.has_inline_(), response, std::move(done),
      [&](OperationDone on_done) {
        return node->Backup(request.session_id(), *call, std::move(on_done));
      },
      FillCompleted(response));
}

void StartWaitTicket(Node* node, const v1::WaitTicketRequest& request, absl::Time latest,
                     v1::WaitTicketResponse* response, StepDone done) {
  absl::Time deadline = std::min(latest, absl::Now() + kCallDurationMax);
  if (request.has_timeout()) {
    const absl::Duration timeout = DurationFromProto(request.timeout());
    if (timeout < absl::ZeroDuration()) {
      return done(FieldInvalid("timeout", absl::FormatDuration(timeout), ">= 0"));
    }
    deadline = std::min(deadline, absl::Now() + timeout);
  }
  AwaitTicket(node, request.session_id(), request.cache(), request.ticket(), deadline,
              [response, done = std::move(done)](absl::StatusOr<int64_t> completed) {
                if (completed.ok()) response->set_completed_ticket(*completed);
                done(completed.status());
              });
}

namespace {

class RunStepsReactor final
    : public grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse> {
 public:
  explicit RunStepsReactor(Node* node) : node_(node) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_.Clear();
    response_.set_step_id(request_.step_id());
    Run();
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&request_);
    } else {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    }
  }

  void OnDone() override { delete this; }

 private:
  void Run() {
    const StepDone done = [this](const absl::Status& status) { Respond(status); };
    switch (request_.verb_case()) {
      case v1::RunStepsRequest::kSwapIn:
        return StartSwapIn(node_, request_.swap_in(), response_.mutable_swap_in(), done);
      case v1::RunStepsRequest::kReplayPlan:
        return StartReplayPlan(node_, request_.replay_plan(), response_.mutable_replay_plan(),
                               done);
      case v1::RunStepsRequest::kBackup:
        return StartBackup(node_, request_.backup(), response_.mutable_backup(), done);
      case v1::RunStepsRequest::kWaitTicket:
        return StartWaitTicket(node_, request_.wait_ticket(), absl::InfiniteFuture(),
                               response_.mutable_wait_ticket(), done);
      default:
        return Respond(FieldInvalid("verb", "missing", "one of the verbs"));
    }
  }

  void Respond(const absl::Status& status) {
    if (!status.ok()) {
      v1::StepError* error = response_.mutable_error();
      error->set_code(static_cast<int32_t>(status.code()));
      error->set_message(std::string(status.message()));
      error->set_reason(ErrorReasonOf(status));
      for (const auto& [key, value] : ErrorMetadataOf(status)) {
        (*error->mutable_metadata())[key] = value;
      }
    }
    StartWrite(&response_);
  }

  Node* const node_;
  v1::RunStepsRequest request_;
  v1::RunStepsResponse response_;
};

}  // namespace

grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* NewRunStepsReactor(Node* node) {
  return new RunStepsReactor(node);
}

}  // namespace kvtier
