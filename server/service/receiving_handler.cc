#include "server/service/receiving_handler.h"

#include <atomic>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/core/error.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

using Parameter = grpc::internal::MethodHandler::HandlerParameter;

constexpr char kTooSlow[] =
    "the request was not received in time: send all of it at once, or less in one call";

grpc::CallbackServerContext* ContextOf(const Parameter& parameter) {
  return static_cast<grpc::CallbackServerContext*>(parameter.server_context);
}

// Requests up to that size are not counted as kept: so many calls as there may be hold little.
constexpr int64_t kUncountedBytesMax = 1 << 10;

bool IsLocal(const IncomingCalls::Caller& caller) {
  return absl::StartsWith(caller.connection, kLocalPeerPrefix);
}

IncomingCalls::Caller CallerOf(const Parameter& parameter, const PeerTable& peers) {
  IncomingCalls::Caller caller;
  caller.connection = ContextOf(parameter)->peer();
  if (!IsLocal(caller)) {
    caller.peer = AddressOf(caller.connection);
    return caller;
  }
  const PeerTable::Found found = peers.Find(caller.connection);
  caller.peer = CountedAs(found.peer);
  if (found.peer.pid >= 0) caller.user = absl::StrCat("uid ", found.peer.uid);
  caller.is_operator = found.is_operator;
  return caller;
}

absl::Status TooLarge(const char* method, int64_t bytes, int64_t limit) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat("a request of ", bytes, " bytes, where ", method, " takes at most ", limit),
      {{"limit", absl::StrCat(limit)}, {"requested", absl::StrCat(bytes)}});
}

// Of no fields, which is a message as well.
grpc_byte_buffer* EmptyMessage() {
  return grpc::g_core_codegen_interface->grpc_raw_byte_buffer_create(nullptr, 0);
}

// The message of a call, as gRPC got it.
class ReceivePayload {
 public:
  grpc_byte_buffer* payload() const { return payload_; }

 protected:
  void AddOp(grpc_op* operations, size_t* count) {
    grpc_op& operation = operations[(*count)++];
    operation = {};
    operation.op = GRPC_OP_RECV_MESSAGE;
    operation.data.recv_message.recv_message = &payload_;
  }
  void FinishOp(bool* /*ok*/) {}
  // There are no interceptors.
  void SetInterceptionHookPoint(grpc::internal::InterceptorBatchMethodsImpl* /*methods*/) {}
  void SetFinishInterceptionHookPoint(grpc::internal::InterceptorBatchMethodsImpl* /*methods*/) {}
  void SetHijackingState(grpc::internal::InterceptorBatchMethodsImpl* /*methods*/) {}

 private:
  grpc_byte_buffer* payload_ = nullptr;
};

}  // namespace

// One request, from its call's headers until it is there.
class ReceivingHandler::Request : public std::enable_shared_from_this<Request> {
 public:
  // `parameter.call_requester` has the place as well, and is let go of when the call is over.
  Request(ReceivingHandler* method, IncomingCalls* calls,
          std::shared_ptr<IncomingCalls::Place> place, const Parameter& parameter,
          const CallRecord& record)
      : method_(*method),
        calls_(calls),
        place_(std::move(place)),
        handler_(method->Inner(&refusal_)),
        parameter_(parameter),
        record_(record) {}

  // Asks gRPC for it.
  void Start() {
    self_ = shared_from_this();
    // Hands the call to its method, which never waits, as gRPC itself does.
    tag_.Set(
        parameter_.call->call(), [this](bool /*ok*/) { Finish(); }, &receive_,
        /*can_inline=*/true);
    receive_.set_core_cq_tag(&tag_);
    parameter_.call->PerformOps(&receive_);
  }

  // Ends the call; what is being received then ends as well.
  void GiveUp() {
    given_up_ = true;
    grpc::g_core_codegen_interface->grpc_call_cancel_with_status(
        parameter_.call->call(), GRPC_STATUS_RESOURCE_EXHAUSTED, kTooSlow, nullptr);
  }

 private:
  void Finish() {
    const std::shared_ptr<Request> self = std::move(self_);
    if (given_up_ && receive_.payload() == nullptr) {
      record_.End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, kTooSlow));
    }
    grpc::Status status;
    void* data = nullptr;
    void* const request = Parse(&status, &data);
    // Until then it was counted as one that is being received.
    calls_->Received(place_.get());
    if (!refusal_.ok()) record_.End(refusal_);
    handler_->RunHandler(Parameter(parameter_.call, parameter_.server_context, request, status,
                                   data, parameter_.call_requester));
  }

  // Also of no message: a client that has gone is noticed by whoever gets the call. Of one that is
  // refused nothing is left.
  void* Parse(grpc::Status* status, void** data) {
    grpc_byte_buffer* payload = receive_.payload();
    const int64_t bytes =
        payload == nullptr ? 0 : static_cast<int64_t>(payload->data.raw.slice_buffer.length);
    if (bytes > method_.rules_.bytes_max) {
      refusal_ = ToWire(TooLarge(method_.name_, bytes, method_.rules_.bytes_max));
      grpc::g_core_codegen_interface->grpc_byte_buffer_destroy(payload);
      payload = EmptyMessage();
    }
    void* const request = handler_->Deserialize(parameter_.call->call(), payload, status, data);
    if (!refusal_.ok() || !status->ok() || bytes <= kUncountedBytesMax) return request;
    refusal_ = ToWire(calls_->Keep(place_.get(), method_.SpaceOf(request)));
    if (!refusal_.ok()) method_.Empty(request);
    return request;
  }

  const ReceivingHandler& method_;
  IncomingCalls* const calls_;
  const std::shared_ptr<IncomingCalls::Place> place_;
  grpc::Status refusal_;
  const std::unique_ptr<grpc::internal::MethodHandler> handler_;
  const Parameter parameter_;
  const CallRecord record_;
  std::atomic<bool> given_up_ = false;
  grpc::internal::CallOpSet<ReceivePayload> receive_;
  grpc::internal::CallbackWithSuccessTag tag_;  // keeps the call while it is set
  std::shared_ptr<Request> self_;               // while gRPC has the tag
};

void ReceivingHandler::RunHandler(const HandlerParameter& parameter) {
  const IncomingCalls::Caller caller = CallerOf(parameter, *door_.peers);
  IncomingCalls* const calls = IsLocal(caller) ? door_.calls : door_.tcp_calls;
  absl::StatusOr<std::shared_ptr<IncomingCalls::Place>> place = calls->Begin(caller, rules_.kind);
  if (!place.ok()) return Refuse(parameter, ToWire(place.status()));
  const HandlerParameter with_place(parameter.call, parameter.server_context, parameter.request,
                                    parameter.status, parameter.internal_data,
                                    [place = *place, end = parameter.call_requester] { end(); });
  if (rules_.kind == IncomingCalls::Kind::kStream) {
    Inner(&grpc::Status::OK)->RunHandler(with_place);
    return;
  }
  const auto request = std::make_shared<Request>(
      this, calls, *place, with_place, CallRecord{door_.log, ContextOf(parameter), name_});
  calls->Receive(
      *place, [request] { request->Start(); },
      [weak = std::weak_ptr<Request>(request)] {
        if (const std::shared_ptr<Request> found = weak.lock()) found->GiveUp();
      });
}

void ReceivingHandler::Refuse(const HandlerParameter& parameter, const grpc::Status& refusal) {
  CallRecord{door_.log, ContextOf(parameter), name_}.End(refusal);
  const std::unique_ptr<grpc::internal::MethodHandler> handler = Inner(&refusal);
  grpc::Status status;
  void* request = nullptr;
  void* data = nullptr;
  if (rules_.kind != IncomingCalls::Kind::kStream) {
    request = handler->Deserialize(parameter.call->call(), EmptyMessage(), &status, &data);
  }
  handler->RunHandler(HandlerParameter(parameter.call, parameter.server_context, request, status,
                                       data, parameter.call_requester));
}

}  // namespace kvtier
