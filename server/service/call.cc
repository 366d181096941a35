#include "server/service/call.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "server/core/error.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

absl::Status CallDeadlinePassed(absl::string_view what) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE", what);
}

// A ticket that somebody waits for; whichever of the alarm and the ticket comes first answers.
struct TicketWait {
  std::function<void(absl::StatusOr<int64_t>)> done;
  std::atomic<bool> answered{false};
  grpc::Alarm alarm;

  void AnswerOnce(absl::StatusOr<int64_t> result) {
    if (!answered.exchange(true)) done(std::move(result));
  }
};

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const absl::Time latest = absl::Now() + kCallDurationMax;
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return latest;
  return std::min(latest, absl::FromChrono(deadline));
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* RunControl(ControlExecutor* executor,
                                     grpc::CallbackServerContext* context,
                                     std::function<absl::Status(absl::Time)> verb) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Time deadline = DeadlineOf(*context);
  const absl::Status queued = executor->Run([context, reactor, deadline, verb = std::move(verb)] {
    if (context->IsCancelled() || absl::Now() >= deadline) {
      reactor->Finish(ToGrpcStatus(
          CallDeadlinePassed("the call was given up before it began; nothing was done")));
      return;
    }
    reactor->Finish(ToGrpcStatus(verb(deadline)));
  });
  if (!queued.ok()) reactor->Finish(ToGrpcStatus(queued));
  return reactor;
}

void AwaitTicket(Node* node, const std::string& session_id, const std::string& cache,
                 int64_t ticket, absl::Time deadline,
                 std::function<void(absl::StatusOr<int64_t>)> done) {
  auto wait = std::make_shared<TicketWait>();
  wait->done = std::move(done);
  wait->alarm.Set(absl::ToChronoTime(deadline), [wait, ticket](bool fired) {
    if (!fired) return;  // cancelled: the ticket was first
    wait->AnswerOnce(CallDeadlinePassed(absl::StrCat("ticket ", ticket, " is not done yet")));
  });
  const absl::Status status =
      node->OnTicket(session_id, cache, ticket, [wait](OperationOutcome outcome) {
        if (outcome.status.ok()) {
          wait->AnswerOnce(outcome.ticket);
        } else {
          wait->AnswerOnce(outcome.status);
        }
        wait->alarm.Cancel();
      });
  if (status.ok()) return;
  wait->AnswerOnce(status);
  wait->alarm.Cancel();
}

}  // namespace kvtier
