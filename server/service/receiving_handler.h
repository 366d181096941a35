// Handlers of gRPC's methods that meet a call at its headers, before its request is received.
//
//   MarkMethodStreamed(index, NewReceivingHandler(door, "Backup", this, &Service::Backup));
//
// To gRPC such a method is a stream with one message in each direction, which on the wire is the
// same; the method itself is called as ever, with all of its request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "grpcpp/grpcpp.h"
#include "proto/support/wire_limits.h"
#include "server/service/call_log.h"
#include "server/service/incoming_calls.h"
#include "server/service/peer_table.h"

namespace kvtier {

// What calls come through. All must outlive them.
struct CallDoor {
  IncomingCalls* calls = nullptr;
  IncomingCalls* tcp_calls = nullptr;  // of those over TCP: they take nothing from workers
  const PeerTable* peers = nullptr;
  CallLog* log = nullptr;
};

// What is asked of a call's request.
struct RequestRules {
  // As it is sent. A larger one is refused as soon as it is there, and not kept.
  int64_t bytes_max = wire::kSmallRequestBytesMax;
  IncomingCalls::Kind kind = IncomingCalls::Kind::kOneRequest;
};

class ReceivingHandler : public grpc::internal::MethodHandler {
 public:
  // Never waits.
  void RunHandler(const HandlerParameter& parameter) final;

 protected:
  // `name` as CallRecord has it.
  ReceivingHandler(const CallDoor& door, const char* name, const RequestRules& rules)
      : door_(door), name_(name), rules_(rules) {}

 private:
  class Request;
  // gRPC's own handler, that serves a call; if `refusal` is not OK when it runs it ends it with
  // that.
  virtual std::unique_ptr<grpc::internal::MethodHandler> Inner(const grpc::Status* refusal) = 0;
  // Of a request that `Inner` has made of its message: what it takes in memory.
  virtual size_t SpaceOf(const void* request) const = 0;
  // Gives that back.
  virtual void Empty(void* request) const = 0;
  // To be called before it is asked for, or with none of it.
  void Refuse(const HandlerParameter& parameter, const grpc::Status& refusal);

  const CallDoor door_;
  const char* const name_;
  const RequestRules rules_;
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

// `Handler` is made of a function from `Arguments` to a reactor. `Message`: the request;
// std::monostate if it asks for its requests itself.
template <typename Handler, typename Message, typename Reactor, typename... Arguments>
class ReceivingHandlerOf final : public ReceivingHandler {
 public:
  using Method = std::function<Reactor*(grpc::CallbackServerContext*, Arguments...)>;

  ReceivingHandlerOf(const CallDoor& door, const char* name, const RequestRules& rules,
                     Method method)
      : ReceivingHandler(door, name, rules), method_(std::move(method)) {}

 private:
  static constexpr bool kHasRequest = !std::is_same_v<Message, std::monostate>;

  std::unique_ptr<grpc::internal::MethodHandler> Inner(const grpc::Status* refusal) override {
    return std::make_unique<Handler>(
        [this, refusal](grpc::CallbackServerContext* context, Arguments... arguments) -> Reactor* {
          if (!refusal->ok()) return new RefusedReactor<Reactor>(*refusal);
          return method_(context, arguments...);
        });
  }
  size_t SpaceOf(const void* request) const override {
    if constexpr (kHasRequest) return static_cast<const Message*>(request)->SpaceUsedLong();
    return 0;
  }
  void Empty(void* request) const override {
    if constexpr (kHasRequest) Message().Swap(static_cast<Message*>(request));
  }

  const Method method_;
};

// For Service::MarkMethodStreamed, which takes it: the handler of `method` of `service`, by what
// the method is to its caller. `name` as CallRecord has it.
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*,
                                                 Response*),
    const RequestRules& rules = {}) {
  return new ReceivingHandlerOf<grpc::internal::CallbackUnaryHandler<Request, Response>, Request,
                                grpc::ServerUnaryReactor, const Request*, Response*>(
      door, name, rules, std::bind_front(method, service));
}
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerWriteReactor<Response>* (Service::*method)(grpc::CallbackServerContext*,
                                                           const Request*),
    const RequestRules& rules = {}) {
  return new ReceivingHandlerOf<grpc::internal::CallbackServerStreamingHandler<Request, Response>,
                                Request, grpc::ServerWriteReactor<Response>, const Request*>(
      door, name, rules, std::bind_front(method, service));
}
// Its requests are received by whoever serves it: no rule but gRPC's own.
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* NewReceivingHandler(
    const CallDoor& door, const char* name, Service* service,
    grpc::ServerBidiReactor<Request, Response>* (Service::*method)(grpc::CallbackServerContext*),
    const RequestRules& /*rules*/ = {}) {
  return new ReceivingHandlerOf<grpc::internal::CallbackBidiHandler<Request, Response>,
                                std::monostate, grpc::ServerBidiReactor<Request, Response>>(
      door, name, {.kind = IncomingCalls::Kind::kStream}, std::bind_front(method, service));
}

}  // namespace kvtier
