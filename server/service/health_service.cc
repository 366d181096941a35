#include "server/service/health_service.h"

#include <utility>

#include "google/protobuf/descriptor.h"

namespace kvtier {

using Status = HealthService::Response::ServingStatus;

// Tells the last status that was not told yet; those between are skipped.
class HealthService::WatchCall final : public grpc::ServerWriteReactor<Response> {
 public:
  WatchCall(HealthService* health, std::string service)
      : health_(health), service_(std::move(service)) {
    {
      MutexLock lock(&health_->mutex_);
      health_->watching_.insert(this);
    }
    Pump();
  }

  // Starts what can be started now.
  void Pump() {
    bool write = false, finish = false;
    {
      MutexLock lock(&health_->mutex_);
      if (!Decide(&write, &finish)) return;
    }
    Start(write, finish);
  }
  // Under the lock. False: nothing.
  bool Decide(bool* write, bool* finish) KVTIER_NO_THREAD_SAFETY_ANALYSIS {
    if (writing_ || finished_) return false;
    const Status now = health_->StatusOf(service_);
    if (broken_) {
      *finish = finished_ = true;
    } else if (!told_ || now != last_) {
      *write = writing_ = told_ = true;
      last_ = now;
      response_.set_status(now);
    }
    return *write || *finish;
  }
  void Start(bool write, bool finish) {
    if (write) StartWrite(&response_);
    if (finish) Finish(grpc::Status::CANCELLED);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&health_->mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    Pump();
  }
  void OnCancel() override {
    {
      MutexLock lock(&health_->mutex_);
      broken_ = true;
    }
    Pump();
  }
  void OnDone() override {
    {
      MutexLock lock(&health_->mutex_);
      health_->watching_.erase(this);
    }
    delete this;
  }

 private:
  ~WatchCall() override = default;

  HealthService* const health_;
  const std::string service_;
  Response response_;  // of the write under way
  // These: under the service's lock.
  Status last_ = Response::UNKNOWN;
  bool told_ = false, writing_ = false, broken_ = false, finished_ = false;
};

HealthService::HealthService(const CallDoor& door) {
  const google::protobuf::ServiceDescriptor& service =
      *Request::descriptor()->file()->FindServiceByName("Health");
  const auto receive = [&](const char* name, auto method, IncomingCalls::Kind kind) {
    MarkMethodStreamed(service.FindMethodByName(name)->index(),
                       NewReceivingHandler(door, name, this, method, {.kind = kind}));
  };
  receive("Check", &HealthService::Check, IncomingCalls::Kind::kOneRequest);
  receive("Watch", &HealthService::Watch, IncomingCalls::Kind::kWatch);
}

void HealthService::Set(const std::string& service, bool serving) {
  struct Decision {
    WatchCall* call = nullptr;
    bool write = false, finish = false;
  };
  std::vector<Decision> decisions;
  {
    MutexLock lock(&mutex_);
    statuses_[service] = serving ? Response::SERVING : Response::NOT_SERVING;
    for (WatchCall* const call : watching_) {
      Decision decision = {call};
      if (call->Decide(&decision.write, &decision.finish)) decisions.push_back(decision);
    }
  }
  for (const Decision& decision : decisions) decision.call->Start(decision.write, decision.finish);
}

Status HealthService::StatusOf(const std::string& service) const {
  const auto found = statuses_.find(service);
  return found == statuses_.end() ? Response::SERVICE_UNKNOWN : found->second;
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const Request* request, Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  {
    MutexLock lock(&mutex_);
    response->set_status(StatusOf(request->service()));
  }
  const bool known = response->status() != Response::SERVICE_UNKNOWN;
  reactor->Finish(known ? grpc::Status::OK
                        : grpc::Status(grpc::StatusCode::NOT_FOUND, "service name unknown"));
  return reactor;
}

grpc::ServerWriteReactor<HealthService::Response>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const Request* request) {
  return new WatchCall(this, request->service());
}

}  // namespace kvtier
