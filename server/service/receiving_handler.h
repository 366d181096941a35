// Handlers of gRPC's methods that meet a call at its headers, before its request is received.
//
//   MarkMethodStreamed(index, NewReceivingHandler(door, "Backup", this, &Service::Backup));
//
// To gRPC such a method is a stream with one message in each direction, which on the wire is the
// same; the method itself is called as ever, with all of its request.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "server/service/call_log.h"
#include "server/service/incoming_calls.h"
#include "server/service/peer_table.h"

namespace kvtier {

// What calls come through. All must outlive them.
struct CallDoor {
  IncomingCalls* calls = nullptr;
  const PeerTable* peers = nullptr;
  CallLog* log = nullptr;
};

class ReceivingHandler : public grpc::internal::MethodHandler {
 public:
  // Never waits.
  void RunHandler(const HandlerParameter& parameter) final;

 protected:
  // `name` as CallRecord has it.
  ReceivingHandler(const CallDoor& door, const char* name, IncomingCalls::Kind kind)
      : door_(door), name_(name), kind_(kind) {}

 private:
  class Request;
  // gRPC's own handler, that serves a call; with a `refusal` that is not OK it ends it with that.
  virtual std::unique_ptr<grpc::internal::MethodHandler> Inner(const grpc::Status& refusal) = 0;
  void Refuse(const HandlerParameter& parameter, const grpc::Status& refusal);

  const CallDoor door_;
  const char* const name_;
  const IncomingCalls::Kind kind_;
};

// Ends at once.
template <typename Reactor>
class RefusedReactor final : public Reactor {
 public:
  explicit RefusedReactor(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }

 private:
  ~RefusedReactor() override = default;
};

// `Handler` is made of a function from `Arguments` to a reactor.
template <typename Handler, IncomingCalls::Kind kind, typename Reactor, typename... Arguments>
class ReceivingHandlerOf final : public ReceivingHandler {
 public:
  using Method = std::function<Reactor*(grpc::CallbackServerContext*, Arguments...)>;

  ReceivingHandlerOf(const CallDoor& door, const char* name, Method method)
      : ReceivingHandler(door, name, kind), method_(std::move(method)) {}

 private:
  std::unique_ptr<grpc::internal::MethodHandler> Inner(const grpc::Status& refusal) override {
    if (refusal.ok()) return std::make_unique<Handler>(method_);
    return std::make_unique<Handler>([refusal](grpc::CallbackServerContext*, Arguments...) {
      return new RefusedReactor<Reactor>(refusal);
    });
  }

  const Method method_;
};

// For Service::MarkMethodStreamed, which takes it: the handler of `method` of `service`, by what
// the method is to its caller. `name` as CallRecord has it.
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*,
                                                 Response*)) {
  return new ReceivingHandlerOf<grpc::internal::CallbackUnaryHandler<Request, Response>,
                                IncomingCalls::Kind::kOneRequest, grpc::ServerUnaryReactor,
                                const Request*, Response*>(door, name,
                                                           std::bind_front(method, service));
}
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerWriteReactor<Response>* (Service::*method)(grpc::CallbackServerContext*,
                                                           const Request*)) {
  return new ReceivingHandlerOf<grpc::internal::CallbackServerStreamingHandler<Request, Response>,
                                IncomingCalls::Kind::kOneRequest,
                                grpc::ServerWriteReactor<Response>, const Request*>(
      door, name, std::bind_front(method, service));
}
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerBidiReactor<Request, Response>* (Service::*method)(grpc::CallbackServerContext*)) {
  return new ReceivingHandlerOf<grpc::internal::CallbackBidiHandler<Request, Response>,
                                IncomingCalls::Kind::kStream,
                                grpc::ServerBidiReactor<Request, Response>>(
      door, name, std::bind_front(method, service));
}

}  // namespace kvtier
