// How each RPC is called.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/api_program.h"
#include "tests/fuzz/direct_world.h"

namespace kvtier::fuzz {
namespace {

// Only a call that hangs waits so long.
constexpr absl::Duration kPatience = absl::Seconds(20);

// The session that a request names; "" if it names none.
template <typename Request>
std::string SessionIdOf(const Request& request) {
  if constexpr (requires { request.session_id(); }) return request.session_id();
  return "";
}

template <typename Message>
bool Parses(const std::string& bytes) {
  return Message().ParseFromString(bytes);
}

}  // namespace

std::string DirectWorld::BytesOf(const google::protobuf::Message& given,
                                 const Manner& manner) const {
  const std::unique_ptr<google::protobuf::Message> request(given.New());
  request->CopyFrom(given);
  NameSessions(session_ids_, request.get());
  std::string bytes = request->SerializeAsString();
  if (manner.garble() != 0 && !bytes.empty()) {
    const auto garble = static_cast<uint32_t>(manner.garble());
    bytes[(garble >> 8) % bytes.size()] ^= static_cast<char>(garble & 0xff);
  }
  return bytes;
}

Arrival DirectWorld::ArrivalOf(const Manner& manner) const {
  const Caller& caller = CallerOf(manner);
  Arrival arrival = {
      .peer = caller.peer, .request_id = manner.request_id(), .certificate = caller.certificate};
  if (manner.has_deadline_milliseconds()) {
    arrival.deadline = machine_.Now() + absl::Milliseconds(manner.deadline_milliseconds());
  }
  return arrival;
}

bool DirectWorld::Conclude(Pending* pending) {
  if (!pending->call->finished()) return false;
  while (pending->call->React()) {
  }
  const grpc::Status status = pending->call->status();
  Judge(pending->name, status, pending->manner);
  if (!status.ok()) return true;
  JudgeTaken(*pending);
  const std::string& answer = pending->call->answers().front();
  if (!pending->parses(answer)) Fail(absl::StrCat(pending->name, ": no answer of its type"));
  if (pending->name == "AttachCache") {
    Attached(answer, static_cast<uint32_t>(pending->manner.caller()) % Callers().size());
  }
  return true;
}

void DirectWorld::Attached(const std::string& answer, size_t caller) {
  v1::AttachCacheResponse response;
  response.ParseFromString(answer);
  Attachment& attachment = attachments_.emplace_back();
  attachment.caller = caller;
  attachment.segments = {response.segments().begin(), response.segments().end()};
}

template <typename Service, typename Request, typename Response>
void DirectWorld::PlayUnary(const Call& call, const Request& given, const char* name,
                            Service* service,
                            grpc::ServerUnaryReactor* (Service::*method)(
                                grpc::CallbackServerContext*, const Request*, Response*)) {
  const Manner& manner = call.manner();
  auto exchange = std::make_unique<UnaryExchange<Request, Response>>(ArrivalOf(manner));
  if (!exchange->Parse(BytesOf(given, manner))) {
    ++played_->errors;
    return;
  }
  std::string session_id;
  exchange->Begin([&](auto* context, auto* request, auto* response) {
    session_id = SessionIdOf(*request);
    return (service->*method)(context, request, response);
  });
  if (manner.cancel()) exchange->Cancel();
  pending_.push_back({name, std::move(session_id), manner, std::move(exchange), &Parses<Response>});
  if (manner.later()) {
    ReactAll();
    return;
  }
  Settle(/*device=*/true);
  if (pending_.empty()) return;
  // What is left waits for an alarm of gRPC's, which knows the machine's clock alone.
  for (Pending& one : pending_) one.call->Cancel();
  Settle(/*device=*/true);
}

void DirectWorld::PlayRequest(const Call& call) {
  const auto weather = static_cast<uint32_t>(call.manner().weather());
  machine_.SetWeather(static_cast<simulation::Weather>(weather % 4), weather, [this, weather] {
    if (weather % 4 != static_cast<uint32_t>(simulation::Weather::kLostLease)) return;
    lease_lost_ = true;
    CloseSession(static_cast<int32_t>(weather / 4));
  });
  switch (call.call_case()) {
    case Call::kOpenSession:
      return PlayOpen(call);
    case Call::kWatchStats:
      return PlayWatch(call);
    case Call::kRunSteps:
      return PlaySteps(call);
#define KVTIER_UNARY(Method, field, service)                     \
  case Call::k##Method:                                          \
    return PlayUnary(call, call.field(), #Method, service.get(), \
                     &std::remove_reference_t<decltype(*service)>::Method)
      KVTIER_UNARY(AttachCache, attach_cache, kv_tier_);
      KVTIER_UNARY(DetachCache, detach_cache, kv_tier_);
      KVTIER_UNARY(AdmitRequest, admit_request, kv_tier_);
      KVTIER_UNARY(ReleaseRequest, release_request, kv_tier_);
      KVTIER_UNARY(AssignBlocks, assign_blocks, kv_tier_);
      KVTIER_UNARY(FreeBlocks, free_blocks, kv_tier_);
      KVTIER_UNARY(InvalidateBlocks, invalidate_blocks, kv_tier_);
      KVTIER_UNARY(ListKeptBlocks, list_kept_blocks, kv_tier_);
      KVTIER_UNARY(SwapIn, swap_in, kv_tier_);
      KVTIER_UNARY(ReplayPlan, replay_plan, kv_tier_);
      KVTIER_UNARY(Backup, backup, kv_tier_);
      KVTIER_UNARY(WaitTicket, wait_ticket, kv_tier_);
      KVTIER_UNARY(GetStats, get_stats, admin_);
      KVTIER_UNARY(ListCaches, list_caches, admin_);
      KVTIER_UNARY(ListSessions, list_sessions, admin_);
      KVTIER_UNARY(ListRequests, list_requests, admin_);
      KVTIER_UNARY(GetNodeInfo, get_node_info, admin_);
      KVTIER_UNARY(Drain, drain, admin_);
      KVTIER_UNARY(EvictSession, evict_session, admin_);
#undef KVTIER_UNARY
    default:
      return;
  }
}

void DirectWorld::PlayOpen(const Call& call) {
  auto stream = std::make_unique<SessionExchange>(ArrivalOf(call.manner()));
  if (!stream->Parse(BytesOf(call.open_session(), call.manner()))) {
    ++played_->errors;
    return;
  }
  stream->Begin(
      [&](auto* context, const auto* request) { return kv_tier_->OpenSession(context, request); });
  while (stream->React()) {
  }
  if (stream->done()) return Judge("OpenSession", stream->status(), call.manner());
  v1::SessionEvent event;
  if (stream->answers().empty() || !event.ParseFromString(stream->answers().front()) ||
      event.opened().session_id().empty()) {
    return Fail("the first event opens no session");
  }
  session_ids_.push_back(event.opened().session_id());
  sessions_.push_back({event.opened().session_id(),
                       static_cast<uint32_t>(call.manner().caller()) % Callers().size(),
                       std::move(stream)});
}

void DirectWorld::PlayWatch(const Call& call) {
  StatsExchange stream(ArrivalOf(call.manner()));
  if (!stream.Parse(BytesOf(call.watch_stats(), call.manner()))) {
    ++played_->errors;
    return;
  }
  stream.Begin(
      [&](auto* context, const auto* request) { return admin_->WatchStats(context, request); });
  // Whoever reads on waits for an alarm, which the machine's clock rings.
  if (!call.manner().cancel()) stream.Break();
  while (stream.React()) {
  }
  if (!stream.done()) {
    stream.Cancel();
    if (!stream.WaitUntilFinished(kPatience)) return Fail("WatchStats does not end");
    while (stream.React()) {
    }
  }
  if (stream.status().error_code() == grpc::StatusCode::CANCELLED) return;
  Judge("WatchStats", stream.status(), call.manner());
}

void DirectWorld::PlaySteps(const Call& call) {
  const Manner& manner = call.manner();
  Steps& steps = steps_[static_cast<uint32_t>(manner.caller()) % Callers().size()];
  if (steps.stream == nullptr) {
    steps.stream = std::make_unique<StepsExchange>(ArrivalOf(manner));
    steps.stream->Begin([&](auto* context) { return kv_tier_->RunSteps(context); });
    if (steps.stream->finished()) {
      while (steps.stream->React()) {
      }
      Judge("RunSteps", steps.stream->status(), manner);
      steps.stream.reset();
      return;
    }
  }
  if (!steps.stream->reading()) {
    // As many as may wait do: the client has to read first.
    Settle(/*device=*/true);
    TakeStepAnswers(&steps);
  }
  if (!steps.stream->reading()) return Fail("RunSteps does not read though all is answered");
  const std::string bytes = BytesOf(call.run_steps(), manner);
  v1::RunStepsRequest request;
  const bool good = request.ParseFromString(bytes);
  if (good) steps.ids.push_back(request.step_id());
  steps.stream->Send(bytes);
  if (manner.cancel()) {
    steps.stream->Cancel();
  } else if (manner.later() && good) {
    return;
  } else {
    Settle(/*device=*/true);
    TakeStepAnswers(&steps);
    if (good && steps.ids.empty()) return;
  }
  EndSteps(&steps);
}

void DirectWorld::TakeStepAnswers(Steps* steps) {
  while (steps->stream->React()) {
  }
  for (const std::string& bytes : steps->stream->answers()) {
    v1::RunStepsResponse answer;
    if (!answer.ParseFromString(bytes)) return Fail("RunSteps: no answer of its type");
    if (steps->ids.empty() || answer.step_id() != steps->ids.front()) {
      return Fail("a step answers with another's id");
    }
    steps->ids.pop_front();
    if (answer.has_error()) {
      const grpc::Status status(static_cast<grpc::StatusCode>(answer.error().code()),
                                answer.error().message());
      ++played_->errors;
      if (answer.error().reason().empty()) Fail("a step's error without a reason");
      JudgeText("RunSteps", answer.error().message());
    }
  }
  steps->stream->answers().clear();
}

// Breaks it off: what is not answered is not any more.
void DirectWorld::EndSteps(Steps* steps) {
  if (steps->stream == nullptr) return;
  steps->stream->Cancel();
  steps->stream->Break();
  Settle(/*device=*/true);
  while (steps->stream->React()) {
  }
  if (!steps->stream->done()) return Fail("RunSteps does not end");
  steps->stream.reset();
  steps->ids.clear();
}

}  // namespace kvtier::fuzz
