#include "client/steps.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cache_state.h"
#include "client/error.h"
#include "client/mutex.h"
#include "grpcpp/grpcpp.h"

namespace kvtier::client {
namespace {

absl::StatusOr<StepResult> ResultOf(const v1::RunStepsResponse& answer) {
  StepResult result = {.step_id = answer.step_id()};
  switch (answer.result_case()) {
    case v1::RunStepsResponse::kSwapIn:
      result.ticket = {answer.swap_in().ticket(), answer.swap_in().completed()};
      return result;
    case v1::RunStepsResponse::kReplayPlan:
      result.ticket = {answer.replay_plan().ticket(), answer.replay_plan().completed()};
      return result;
    case v1::RunStepsResponse::kBackup:
      result.ticket = {answer.backup().ticket(), answer.backup().completed()};
      return result;
    case v1::RunStepsResponse::kWaitTicket:
      result.ticket = {answer.wait_ticket().completed_ticket(), true};
      return result;
    case v1::RunStepsResponse::kError: {
      const v1::StepError& error = answer.error();
      result.status =
          MakeError(static_cast<absl::StatusCode>(error.code()), error.reason(), error.message(),
                    {error.metadata().begin(), error.metadata().end()});
      if (!result.status.ok()) return result;
      break;
    }
    case v1::RunStepsResponse::RESULT_NOT_SET:
      break;
  }
  return MalformedAnswer(absl::StrCat("RunSteps answered step ", answer.step_id(),
                                      " with neither a result nor an error"));
}

}  // namespace

// The call. gRPC runs the On... functions on its threads; none of them blocks.
class StepCall final : public grpc::ClientBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse> {
 public:
  StepCall(std::shared_ptr<CacheState> state, DeviceStreamRef stream)
      : state_(std::move(state)), stream_(stream) {
    state_->connection().stub()->async()->RunSteps(&context_, this);
    // Writes are begun outside the reactions; OnReadDone(false) takes the hold away.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  ~StepCall() override {
    context_.TryCancel();
    MutexLock lock(&mutex_);
    changed_.Wait(&mutex_, [this]() KVTIER_CLIENT_REQUIRES(mutex_) { return done_; });
  }

  const CacheState& state() const { return *state_; }

  // Lets the daemon do `message` after all that the stream has now.
  template <typename Request>
  absl::Status Order(absl::StatusOr<Request>* message) {
    if (!message->ok() || stream_ == nullptr) return message->status();
    absl::StatusOr<int32_t> number = state_->SignalDaemon(stream_);
    if (number.ok()) (*message)->set_after_worker(*number);
    return number.status();
  }

  absl::StatusOr<int64_t> Send(v1::RunStepsRequest request) {
    if (absl::Status status = state_->CheckCall(); !status.ok()) return status;
    const v1::RunStepsRequest* to_write = nullptr;
    int64_t step_id = 0;
    {
      MutexLock lock(&mutex_);
      if (!broken_.ok()) return broken_;
      if (read_ended_) return BrokenStatus();
      if (last_sent_ - last_returned_ >= Steps::kInFlightMax) {
        return absl::FailedPreconditionError(absl::StrCat(
            Steps::kInFlightMax, " steps are in flight: take their answers with Next() first"));
      }
      step_id = ++last_sent_;
      request.set_step_id(step_id);
      outgoing_.push_back(std::move(request));
      if (!writing_) {
        writing_ = true;
        to_write = &outgoing_.front();  // stays where it is until OnWriteDone
        AddHold();                      // the call may break before the write has begun
      }
    }
    if (to_write != nullptr) {
      StartWrite(to_write);
      RemoveHold();
    }
    return step_id;
  }

  absl::StatusOr<StepResult> Next() {
    if (absl::Status status = state_->connection().CheckCall();
        !status.ok() && !absl::IsUnavailable(status)) {
      return status;
    }
    const absl::Duration timeout = state_->connection().options().call_timeout;
    absl::StatusOr<StepResult> result = TakeAnswer(timeout);
    if (!result.ok() && !absl::IsFailedPrecondition(result.status())) context_.TryCancel();
    if (stream_ == nullptr || !result.ok() || !result->status.ok()) return result;
    absl::Status ordered = state_->WaitForDaemon(result->ticket.number, stream_);
    if (!ordered.ok()) return ordered;
    return result;
  }

  int32_t in_flight() const {
    MutexLock lock(&mutex_);
    return static_cast<int32_t>(last_sent_ - last_returned_);
  }

  void OnWriteDone(bool ok) override {
    const v1::RunStepsRequest* to_write = nullptr;
    {
      MutexLock lock(&mutex_);
      outgoing_.pop_front();
      if (ok && !outgoing_.empty()) to_write = &outgoing_.front();
      writing_ = to_write != nullptr;
    }
    if (to_write != nullptr) StartWrite(to_write);
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      if (ok) answers_.push_back(std::move(incoming_));
      if (!ok) read_ended_ = true;
      changed_.NotifyAll();
    }
    if (!ok) return RemoveHold();
    incoming_ = v1::RunStepsResponse();
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mutex_);
    done_ = true;
    end_status_ = status;
    changed_.NotifyAll();
  }

 private:
  absl::StatusOr<StepResult> TakeAnswer(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    if (last_sent_ == last_returned_ && !done_) {
      return absl::FailedPreconditionError("no step is in flight: Next() has nothing to wait for");
    }
    const bool came = changed_.WaitFor(&mutex_, timeout, [this]() KVTIER_CLIENT_REQUIRES(mutex_) {
      return !answers_.empty() || done_;
    });
    if (answers_.empty()) {
      if (came) return broken_ = BrokenStatus();
      return broken_ = state_->connection().CallError(
                 "RunSteps", grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, ""), timeout);
    }
    const v1::RunStepsResponse answer = std::move(answers_.front());
    answers_.pop_front();
    if (answer.step_id() != last_returned_ + 1) {
      return broken_ = MalformedAnswer(absl::StrCat("RunSteps answered step ", answer.step_id(),
                                                    " instead of ", last_returned_ + 1));
    }
    ++last_returned_;
    absl::StatusOr<StepResult> result = ResultOf(answer);
    if (!result.ok()) broken_ = result.status();
    return result;
  }

  // Why the call has ended, or is about to.
  absl::Status BrokenStatus() const KVTIER_CLIENT_REQUIRES(mutex_) {
    if (!done_) return absl::UnavailableError("RunSteps: the call has ended");
    if (end_status_.ok()) return absl::UnavailableError("RunSteps: the daemon ended the call");
    return state_->connection().CallError("RunSteps", end_status_, absl::InfiniteDuration());
  }

  const std::shared_ptr<CacheState> state_;
  const DeviceStreamRef stream_;
  grpc::ClientContext context_;
  v1::RunStepsResponse incoming_;  // gRPC's while a read is under way

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<v1::RunStepsRequest> outgoing_ KVTIER_CLIENT_GUARDED_BY(mutex_);  // front: being sent
  std::deque<v1::RunStepsResponse> answers_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  int64_t last_sent_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;
  int64_t last_returned_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;
  bool writing_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  bool read_ended_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  bool done_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  grpc::Status end_status_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  absl::Status broken_ KVTIER_CLIENT_GUARDED_BY(mutex_);  // found on this side
};

Steps::Steps(std::unique_ptr<StepCall> call) : call_(std::move(call)) {}
Steps::Steps(Steps&& other) noexcept = default;

Steps& Steps::operator=(Steps&& other) noexcept {
  std::swap(call_, other.call_);
  return *this;
}

Steps::~Steps() {
  // In a forked child nobody would ever end the call.
  if (call_ != nullptr && call_->state().connection().InForkedChild()) (void)call_.release();
}

absl::StatusOr<int64_t> Steps::SwapIn(int32_t group, int32_t num_rows, const SwapInOptions& options,
                                      bool wait) {
  absl::StatusOr<v1::SwapInRequest> message =
      call_->state().SwapInMessage(group, num_rows, options, wait);
  if (absl::Status status = call_->Order(&message); !status.ok()) return status;
  v1::RunStepsRequest request;
  *request.mutable_swap_in() = *std::move(message);
  return call_->Send(std::move(request));
}

absl::StatusOr<int64_t> Steps::ReplayPlan(int32_t group, int32_t num_rows,
                                          const std::optional<LayerSpan>& layers, bool wait) {
  absl::StatusOr<v1::ReplayPlanRequest> message =
      call_->state().ReplayPlanMessage(group, num_rows, layers, wait);
  if (absl::Status status = call_->Order(&message); !status.ok()) return status;
  v1::RunStepsRequest request;
  *request.mutable_replay_plan() = *std::move(message);
  return call_->Send(std::move(request));
}

absl::StatusOr<int64_t> Steps::Backup(int32_t num_rows, bool wait) {
  absl::StatusOr<v1::BackupRequest> message = call_->state().BackupMessage(num_rows, wait);
  if (absl::Status status = call_->Order(&message); !status.ok()) return status;
  v1::RunStepsRequest request;
  *request.mutable_backup() = *std::move(message);
  return call_->Send(std::move(request));
}

absl::StatusOr<int64_t> Steps::WaitTicket(int64_t ticket) {
  v1::RunStepsRequest request;
  *request.mutable_wait_ticket() = call_->state().WaitTicketMessage(ticket);
  return call_->Send(std::move(request));
}

absl::StatusOr<StepResult> Steps::Next() { return call_->Next(); }
int32_t Steps::in_flight() const { return call_->in_flight(); }

absl::StatusOr<Steps> Steps::Open(const Cache& cache, DeviceStreamRef device_stream) {
  if (absl::Status status = cache.state()->CheckCall(); !status.ok()) return status;
  return Steps(std::make_unique<StepCall>(cache.state(), device_stream));
}

}  // namespace kvtier::client
