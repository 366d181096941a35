// A unary call that is answered once, by whoever comes first.
//
//   auto* call = new UnaryCall(&open_calls, {&call_log, context, "SwapIn"},
//                              UnaryCall::OnCancellation::kAnswer);
//   node->SwapIn(..., [answer = call->answer(), response](OperationOutcome outcome) {
//     if (!answer->Claim()) return;   // the client has gone; `response` is not there any more
//     Fill(outcome, response);
//     answer->Finish(grpc::Status::OK);
//   });
//   return call;
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "server/service/call_log.h"
#include "server/service/open_calls.h"
#include "server/service/wire_error.h"

namespace kvtier {

// The right to answer a call. Outlives the call, harmlessly. Thread-safe.
class UnaryAnswer final : public OpenCalls::Ending {
 public:
  UnaryAnswer(grpc::ServerUnaryReactor* reactor, const CallRecord& record)
      : reactor_(reactor), record_(record) {}

  // True once, for the first who asks. Request and response of the call live until that one
  // calls Finish.
  bool Claim() { return !claimed_.exchange(true); }
  // Once, after a Claim that was true.
  void Finish(const grpc::Status& status) {
    record_.End(status);
    reactor_->Finish(status);
  }

  void End(const absl::Status& status) override {
    if (Claim()) Finish(ToWire(status));
  }

  bool cancelled() const { return cancelled_.load(); }
  void SetCancelled() { cancelled_.store(true); }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  const CallRecord record_;
  std::atomic<bool> claimed_{false};
  std::atomic<bool> cancelled_{false};
};

// The reactor; deletes itself when gRPC is done with it.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  enum class OnCancellation {
    kAnswer,  // the call ends; who computes the answer finds it claimed
    kTell,    // only answer()->cancelled() becomes true: its request may be being read
  };

  // `open_calls` and the record's log must outlive the call.
  UnaryCall(OpenCalls* open_calls, const CallRecord& record, OnCancellation on_cancellation)
      : entry_(open_calls, record.method),
        on_cancellation_(on_cancellation),
        answer_(std::make_shared<UnaryAnswer>(this, record)) {
    if (on_cancellation == OnCancellation::kAnswer) MayEnd();
  }

  // A shutdown may answer it: from now on nobody touches request and response without a Claim.
  void MayEnd() { entry_.MayEnd(answer_); }

  const std::shared_ptr<UnaryAnswer>& answer() const { return answer_; }
  // Lets go of `thing` when gRPC is done with the call: the client has read the answer, or is gone.
  // Before the call is answered.
  void Hold(std::shared_ptr<void> thing) { held_ = std::move(thing); }

  void OnCancel() override {
    answer_->SetCancelled();
    if (on_cancellation_ == OnCancellation::kAnswer && answer_->Claim()) {
      answer_->Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }
  // Neither reaction waits: gRPC runs them where it is, as those of its own reactors, instead of
  // handing each to a thread of its executor.
  bool InternalInlineable() override { return true; }

 private:
  ~UnaryCall() override = default;

  const OpenCalls::Entry entry_;
  const OnCancellation on_cancellation_;
  const std::shared_ptr<UnaryAnswer> answer_;
  std::shared_ptr<void> held_;
};

// A callback that answers with what it is given.
template <typename Response>
auto AnswerInto(std::shared_ptr<UnaryAnswer> answer, Response* response) {
  return [answer = std::move(answer), response](absl::StatusOr<Response> result) {
    if (!answer->Claim()) return;
    if (result.ok()) *response = *std::move(result);
    answer->Finish(ToWire(result.status()));
  };
}

}  // namespace kvtier
