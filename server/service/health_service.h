// grpc.health.v1: what probes ask.
//
// gRPC's own does the same, but receives the whole request of each call at once, however large and
// however many there are (receiving_handler.h).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/core/mutex.h"
#include "server/service/receiving_handler.h"

namespace kvtier {

// Thread-safe; never waits.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;

  explicit HealthService(const CallDoor& door);

  // `service` is known from now on, and whoever watches it is told.
  void Set(const std::string& service, bool serving);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const Request* request,
                                  Response* response) override;
  grpc::ServerWriteReactor<Response>* Watch(grpc::CallbackServerContext* context,
                                            const Request* request) override;

 private:
  class WatchCall;
  // The lock is the calls', too: an operation on one is decided under it and started outside of it,
  // and whoever decides it owns it. A call does not end before it is done.
  Response::ServingStatus StatusOf(const std::string& service) const KVTIER_REQUIRES(mutex_);

  mutable Mutex mutex_;  // rank: a leaf
  std::map<std::string, Response::ServingStatus> statuses_ KVTIER_GUARDED_BY(mutex_);
  std::set<WatchCall*> watching_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
