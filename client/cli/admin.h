// Calls of an operator on a daemon.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/arguments.h"
#include "client/wire.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"

namespace kvtier::cli {

class Admin {
 public:
  // `target` as gRPC takes it. Connects with the first call. Errors: NOT_FOUND for a file of `tls`.
  static absl::StatusOr<Admin> Create(const std::string& target, const TlsOptions& tls,
                                      absl::Duration timeout);

  // One unary call: admin.Call(&v1::KvTierAdmin::Stub::GetStats, request). Errors: those of the
  // daemon, with reason; UNAVAILABLE and DEADLINE_EXCEEDED, saying why nobody answers.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::KvTierAdmin::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Response*),
                                const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return Explain(status);
    return response;
  }

  // "SERVING", "NOT_SERVING". `service` as in grpc.health.v1. Errors: as Call.
  absl::StatusOr<std::string> Health(const std::string& service) const;

  v1::KvTierAdmin::Stub* stub() const { return stub_.get(); }
  absl::Status Explain(const grpc::Status& status) const;

 private:
  Admin(const std::string& target, std::shared_ptr<grpc::Channel> channel, absl::Duration timeout);

  std::string target_;
  absl::Duration timeout_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvTierAdmin::Stub> stub_;
};

}  // namespace kvtier::cli
