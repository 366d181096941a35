#include "server/service/data_plane.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "proto/support/wire_limits.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/service/from_proto.h"
#include "server/service/to_proto.h"

namespace kvtier {
namespace {

template <typename Response>
using Done = DataPlane::Done<Response>;

// Enqueued; nobody waits here.
template <typename Response>
Response Enqueued(int64_t ticket) {
  Response response;
  response.set_ticket(ticket);
  return response;
}

template <typename Response>
absl::StatusOr<Response> Completed(const OperationOutcome& outcome) {
  if (!outcome.status.ok()) return outcome.status;
  Response response = Enqueued<Response>(outcome.ticket);
  response.set_completed(true);
  return response;
}

// An answer that the client's receive limit would turn into an error of its own.
absl::Status CheckAnswerSize(const v1::SwapInResponse& response) {
  const auto bytes = static_cast<int64_t>(response.ByteSizeLong());
  if (bytes <= wire::kAnswerBytesMax) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat("the step was done, but its answer has ", bytes, " bytes, more than ",
                   wire::kAnswerBytesMax, "; use the step buffers, or fewer rows in one call"),
      {{"limit", absl::StrCat(wire::kAnswerBytesMax)}});
}

// Runs `enqueue(done)`, which returns a ticket and later calls its `done`, or an error.
// `complete` turns the outcome into the answer; with `wait` false the ticket is the answer.
template <typename Response, typename Enqueue, typename Complete>
void Run(bool wait, const Enqueue& enqueue, const Complete& complete, Done<Response> done) {
  if (!wait) {
    const absl::StatusOr<int64_t> ticket = enqueue(OperationDone());
    return ticket.ok() ? done(Enqueued<Response>(*ticket)) : done(ticket.status());
  }
  auto shared = std::make_shared<Done<Response>>(std::move(done));
  const absl::StatusOr<int64_t> ticket =
      enqueue([shared, complete](OperationOutcome outcome) { (*shared)(complete(outcome)); });
  if (!ticket.ok()) (*shared)(ticket.status());
}

// A WaitTicket that either the ticket or the clock ends. Owned by what the node will call; the
// alarm must not own it in turn.
struct Waiter {
  std::atomic<bool> answered{false};
  grpc::Alarm alarm;
  Done<v1::WaitTicketResponse> done;

  bool Claim() { return !answered.exchange(true); }
};

absl::Status TicketNotDone(int64_t ticket, absl::Duration waited) {
  return MakeError(
      absl::StatusCode::kDeadlineExceeded, "DEADLINE",
      absl::StrCat("ticket ", ticket, " was not done within ", absl::FormatDuration(waited),
                   "; its work goes on and can be waited for again"),
      {{"ticket", absl::StrCat(ticket)}});
}

absl::StatusOr<v1::WaitTicketResponse> TicketDone(const OperationOutcome& outcome) {
  if (!outcome.status.ok()) return outcome.status;
  v1::WaitTicketResponse response;
  response.set_completed_ticket(outcome.ticket);
  return response;
}

}  // namespace

int64_t DataPlane::AnswerBytesMax(const v1::SwapInRequest& request) const {
  if (!request.has_inline_()) return 0;
  // Of each position a hot row, a flag, and the two numbers of the plan.
  constexpr int64_t kPositionBytes = 4 * int64_t{sizeof(int32_t)};
  // Each row has room for top_k, whatever it asks for: so many where that is less, or where there
  // is no such cache and the step is refused.
  constexpr int64_t kRowPositionsMin = wire::kInlinePositionsMax / wire::kInlineRowsMax;
  const absl::StatusOr<int32_t> positions =
      node_->InlineRowPositions(request.session_id(), request.cache(), request.group_index());
  const int64_t of_row = std::max<int64_t>(positions.value_or(0), kRowPositionsMin);
  // More are refused.
  return std::min(request.inline_().rows_size() * of_row, wire::kInlinePositionsMax) *
         kPositionBytes;
}

int64_t DataPlane::RowBytes(const v1::BackupRequest& request) {
  return request.has_inline_() ? static_cast<int64_t>(request.inline_().SpaceUsedLong()) : 0;
}

void DataPlane::SwapIn(const v1::SwapInRequest& request, Done<v1::SwapInResponse> done) const {
  absl::StatusOr<SwapInCall> call = FromProto(request);
  if (!call.ok()) return done(call.status());
  const auto complete = [](const OperationOutcome& outcome) -> absl::StatusOr<v1::SwapInResponse> {
    if (!outcome.status.ok()) return outcome.status;
    v1::SwapInResponse response = SwapInToProto(outcome);
    if (absl::Status status = CheckAnswerSize(response); !status.ok()) return status;
    return response;
  };
  Run<v1::SwapInResponse>(
      request.wait() || call->inline_rows.has_value(),
      [&](OperationDone then) {
        return node_->SwapIn(request.session_id(), *call, std::move(then));
      },
      complete, std::move(done));
}

void DataPlane::ReplayPlan(const v1::ReplayPlanRequest& request,
                           Done<v1::ReplayPlanResponse> done) const {
  const absl::StatusOr<ReplayPlanCall> call = FromProto(request);
  if (!call.ok()) return done(call.status());
  Run<v1::ReplayPlanResponse>(
      request.wait(),
      [&](OperationDone then) {
        return node_->ReplayPlan(request.session_id(), *call, std::move(then));
      },
      Completed<v1::ReplayPlanResponse>, std::move(done));
}

void DataPlane::Backup(const v1::BackupRequest& request, Done<v1::BackupResponse> done) const {
  const absl::StatusOr<BackupCall> call = FromProto(request);
  if (!call.ok()) return done(call.status());
  Run<v1::BackupResponse>(
      request.wait() || call->inline_rows.has_value(),
      [&](OperationDone then) {
        return node_->Backup(request.session_id(), *call, std::move(then));
      },
      Completed<v1::BackupResponse>, std::move(done));
}

void DataPlane::WaitTicket(const v1::WaitTicketRequest& request, absl::Time deadline,
                           Done<v1::WaitTicketResponse> done) const {
  absl::Duration timeout = kCallDurationMax;
  if (request.has_timeout()) {
    const absl::StatusOr<absl::Duration> asked = FromProto("timeout", request.timeout());
    if (!asked.ok()) return done(asked.status());
    timeout = std::min(timeout, *asked);
  }
  timeout = std::max(std::min(timeout, deadline - clock_->Now()), absl::ZeroDuration());

  auto waiter = std::make_shared<Waiter>();
  waiter->done = std::move(done);
  const int64_t ticket = request.ticket();
  const absl::Status status = node_->OnTicket(request.session_id(), request.cache(), ticket,
                                              [waiter](const OperationOutcome& outcome) {
                                                if (!waiter->Claim()) return;
                                                waiter->alarm.Cancel();
                                                waiter->done(TicketDone(outcome));
                                              });
  if (!status.ok()) return waiter->done(status);
  if (waiter->answered.load()) return;
  // gRPC's alarms know the machine's clock only.
  waiter->alarm.Set(absl::ToChronoTime(absl::Now() + timeout),
                    [weak = std::weak_ptr<Waiter>(waiter), ticket, timeout](bool expired) {
                      const std::shared_ptr<Waiter> found = weak.lock();
                      if (!expired || found == nullptr || !found->Claim()) return;
                      found->done(TicketNotDone(ticket, timeout));
                    });
  // The ticket may have been done meanwhile, and its Cancel come before the Set: the alarm then
  // rings once for nothing, or dies with the waiter.
}

}  // namespace kvtier
