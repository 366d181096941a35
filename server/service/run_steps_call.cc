#include "server/service/run_steps_call.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/error.h"
#include "server/core/mutex.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

using Reactor = RunStepsReactor;

const std::string& SessionIdOf(const v1::RunStepsRequest& request) {
  switch (request.verb_case()) {
    case v1::RunStepsRequest::kReplayPlan:
      return request.replay_plan().session_id();
    case v1::RunStepsRequest::kBackup:
      return request.backup().session_id();
    case v1::RunStepsRequest::kWaitTicket:
      return request.wait_ticket().session_id();
    default:
      return request.swap_in().session_id();  // "" where there is none
  }
}

// One step between reading and answering.
struct Step {
  Step(OpenCalls* open_calls, int64_t answer_bytes_max, int64_t row_bytes)
      : answer_bytes_max(answer_bytes_max), bytes_max(answer_bytes_max + row_bytes) {
    at_work.emplace(open_calls, "RunSteps");
  }

  const int64_t answer_bytes_max;               // 0: next to nothing
  const int64_t bytes_max;                      // with the rows of its request
  std::shared_ptr<UnreadAnswers::Place> place;  // of an answer that may be large

  std::optional<OpenCalls::Entry> at_work;  // until it is ready
  v1::RunStepsResponse response;
  bool ready = false;
};

// What the reactor and the steps under way share; outlives the call until the last step is done.
//
// Operations on the reactor are decided under the lock and started outside of it: gRPC may run a
// reaction inside the call that starts an operation. Whoever decides an operation owns it, and a
// call does not end before each is done, so that the reactor is there.
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  Pipeline(const DataPlane* data_plane, OpenCalls* open_calls, UnreadAnswers* unread_answers,
           UnreadAnswers::Reader reader, const CallRecord& record, CallerCheck check,
           Reactor* reactor)
      : data_plane_(data_plane),
        open_calls_(open_calls),
        unread_answers_(unread_answers),
        record_(record),
        check_(std::move(check)),
        reader_(std::move(reader)),
        reactor_(reactor) {}

  // Starts what can be started now.
  void Pump() KVTIER_EXCLUDES(mutex_);

  void OnReadDone(bool ok) KVTIER_EXCLUDES(mutex_);
  void OnWriteDone(bool ok) KVTIER_EXCLUDES(mutex_);
  void OnCancel() KVTIER_EXCLUDES(mutex_);

 private:
  struct Decision {
    bool read = false, write = false, finish = false;
    std::deque<std::shared_ptr<Step>> dropped;  // to be let go outside of the lock
  };
  Decision Decide() KVTIER_REQUIRES(mutex_);
  void Start(const v1::RunStepsRequest& request, std::shared_ptr<Step> step);
  void StartSwapIn(const v1::RunStepsRequest& request, std::shared_ptr<Step> step);
  void Answer(const std::shared_ptr<Step>& step, v1::RunStepsResponse response)
      KVTIER_EXCLUDES(mutex_);
  // A callback for one verb of `step`; `place` says where in the answer the response belongs.
  template <typename Response, typename Place>
  DataPlane::Done<Response> Deliver(std::shared_ptr<Step> step, int64_t step_id, Place place);

  const DataPlane* const data_plane_;
  OpenCalls* const open_calls_;
  UnreadAnswers* const unread_answers_;
  const CallRecord record_;
  const CallerCheck check_;
  const UnreadAnswers::Reader reader_;
  Reactor* const reactor_;
  v1::RunStepsRequest request_;    // of the read under way
  v1::RunStepsResponse response_;  // of the write under way

  Mutex mutex_;  // rank: a leaf
  std::deque<std::shared_ptr<Step>> steps_ KVTIER_GUARDED_BY(mutex_);
  std::shared_ptr<Step> written_ KVTIER_GUARDED_BY(mutex_);  // of the write under way
  int64_t step_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;         // of all these, at most
  bool reading_ KVTIER_GUARDED_BY(mutex_) = false;
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool no_more_ KVTIER_GUARDED_BY(mutex_) = false;  // the client has said all
  bool broken_ KVTIER_GUARDED_BY(mutex_) = false;   // cancelled, or nobody reads
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;
};

Pipeline::Decision Pipeline::Decide() {
  Decision decision;
  if (finished_) return decision;
  if (broken_ || (no_more_ && steps_.empty())) {
    // Steps under way find that nobody waits for them. Answers behind one that stalls give back
    // their places: nobody is deaf who has gone.
    decision.dropped.swap(steps_);
    decision.finish = finished_ = !reading_ && !writing_;
    return decision;
  }
  if (!writing_ && !steps_.empty() && steps_.front()->ready) {
    written_ = std::move(steps_.front());
    steps_.pop_front();
    response_ = std::move(written_->response);
    decision.write = writing_ = true;
  }
  if (!reading_ && !no_more_ && steps_.size() + (writing_ ? 1 : 0) < kStepsOpenMax &&
      step_bytes_ < kStepBytesMax) {
    decision.read = reading_ = true;
  }
  return decision;
}

void Pipeline::Pump() {
  Decision decision;
  bool broken = false;
  {
    MutexLock lock(&mutex_);
    decision = Decide();
    broken = broken_;
  }
  decision.dropped.clear();
  if (decision.write) reactor_->StartWrite(&response_);
  if (decision.read) reactor_->StartRead(&request_);
  if (!decision.finish) return;
  const grpc::Status status = broken ? grpc::Status::CANCELLED : grpc::Status::OK;
  record_.End(status);
  reactor_->Finish(status);
}

void Pipeline::OnReadDone(bool ok) {
  if (ok) {
    auto step = std::make_shared<Step>(open_calls_, data_plane_->AnswerBytesMax(request_.swap_in()),
                                       DataPlane::RowBytes(request_.backup()));
    {
      MutexLock lock(&mutex_);
      steps_.push_back(step);
      step_bytes_ += step->bytes_max;
    }
    Start(request_, std::move(step));
  }
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    if (!ok) no_more_ = true;
  }
  Pump();
}

void Pipeline::OnWriteDone(bool ok) {
  response_ = v1::RunStepsResponse();  // Clear() would keep its memory
  std::shared_ptr<Step> written;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) broken_ = true;
    step_bytes_ -= written_->bytes_max;
    written = std::move(written_);
  }
  written.reset();  // its place is free before the next step wants one
  Pump();
}

void Pipeline::OnCancel() {
  {
    MutexLock lock(&mutex_);
    broken_ = true;
  }
  Pump();
}

void Pipeline::Answer(const std::shared_ptr<Step>& step, v1::RunStepsResponse response) {
  std::vector<std::shared_ptr<UnreadAnswers::Place>> readable;
  {
    MutexLock lock(&mutex_);
    step->response = std::move(response);
    step->ready = true;
    // Those behind a step that is not done cannot be read yet, which is not their client's fault.
    for (const std::shared_ptr<Step>& each : steps_) {
      if (!each->ready) break;
      if (each->place != nullptr) readable.push_back(each->place);
    }
  }
  // Not under the lock, which is a leaf: these take locks of their own.
  for (const auto& place : readable) place->SetReady();
  readable.clear();
  step->at_work.reset();
  Pump();
}

template <typename Response, typename Place>
DataPlane::Done<Response> Pipeline::Deliver(std::shared_ptr<Step> step, int64_t step_id,
                                            Place place) {
  return [self = shared_from_this(), step = std::move(step), step_id,
          place](absl::StatusOr<Response> result) {
    v1::RunStepsResponse response;
    response.set_step_id(step_id);
    if (result.ok()) {
      *(response.*place)() = *std::move(result);
    } else {
      *response.mutable_error() = ToStepError(result.status());
    }
    self->Answer(step, std::move(response));
  };
}

void Pipeline::StartSwapIn(const v1::RunStepsRequest& request, std::shared_ptr<Step> step) {
  absl::Status status;
  if (step->answer_bytes_max > 0) {
    auto place =
        unread_answers_->Take(reader_, request.swap_in().session_id(), step->answer_bytes_max);
    status = place.status();
    if (place.ok()) step->place = *std::move(place);
  }
  auto deliver = Deliver<v1::SwapInResponse>(std::move(step), request.step_id(),
                                             &v1::RunStepsResponse::mutable_swap_in);
  if (!status.ok()) return deliver(status);
  data_plane_->SwapIn(request.swap_in(), std::move(deliver));
}

void Pipeline::Start(const v1::RunStepsRequest& request, std::shared_ptr<Step> step) {
  using Out = v1::RunStepsResponse;
  const int64_t id = request.step_id();
  absl::Status status = check_(SessionIdOf(request));
  if (status.ok()) status = open_calls_->CheckOpen();
  if (!status.ok()) {
    return Deliver<v1::SwapInResponse>(std::move(step), id, &Out::mutable_swap_in)(status);
  }
  switch (request.verb_case()) {
    case v1::RunStepsRequest::kSwapIn:
      return StartSwapIn(request, std::move(step));
    case v1::RunStepsRequest::kReplayPlan:
      return data_plane_->ReplayPlan(
          request.replay_plan(),
          Deliver<v1::ReplayPlanResponse>(std::move(step), id, &Out::mutable_replay_plan));
    case v1::RunStepsRequest::kBackup:
      return data_plane_->Backup(
          request.backup(), Deliver<v1::BackupResponse>(std::move(step), id, &Out::mutable_backup));
    case v1::RunStepsRequest::kWaitTicket:
      return data_plane_->WaitTicket(
          request.wait_ticket(), absl::InfiniteFuture(),
          Deliver<v1::WaitTicketResponse>(std::move(step), id, &Out::mutable_wait_ticket));
    default:
      Deliver<v1::SwapInResponse>(std::move(step), id, &Out::mutable_swap_in)(
          FieldInvalid("verb", "absent or unknown", "one of the verbs of RunStepsRequest",
                       "a newer client may know more of them than this daemon"));
  }
}

class RunStepsCall final : public Reactor {
 public:
  RunStepsCall(const DataPlane* data_plane, OpenCalls* open_calls, UnreadAnswers* unread_answers,
               const UnreadAnswers::Reader& reader, const CallRecord& record, CallerCheck check)
      : pipeline_(std::make_shared<Pipeline>(data_plane, open_calls, unread_answers, reader, record,
                                             std::move(check), this)) {
    pipeline_->Pump();
  }

  void OnReadDone(bool ok) override { Shared()->OnReadDone(ok); }
  void OnWriteDone(bool ok) override { Shared()->OnWriteDone(ok); }
  void OnCancel() override { Shared()->OnCancel(); }
  void OnDone() override { delete this; }

 private:
  ~RunStepsCall() override = default;
  // By value: a reaction may start the operation that lets another thread end the call.
  std::shared_ptr<Pipeline> Shared() const { return pipeline_; }

  const std::shared_ptr<Pipeline> pipeline_;
};

class RefusedStepsCall final : public Reactor {
 public:
  RefusedStepsCall(const CallRecord& record, const grpc::Status& status) {
    record.End(status);
    Finish(status);
  }
  void OnDone() override { delete this; }

 private:
  ~RefusedStepsCall() override = default;
};

}  // namespace

Reactor* NewRunStepsCall(const DataPlane* data_plane, OpenCalls* open_calls,
                         UnreadAnswers* unread_answers, const UnreadAnswers::Reader& reader,
                         const CallRecord& record, CallerCheck check) {
  return new RunStepsCall(data_plane, open_calls, unread_answers, reader, record, std::move(check));
}

Reactor* NewRefusedStepsCall(const CallRecord& record, const absl::Status& status) {
  return new RefusedStepsCall(record, ToWire(status));
}

}  // namespace kvtier
