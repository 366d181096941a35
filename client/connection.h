// The gRPC side of a session, shared by everything that makes calls under it. Internal to client/.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mutex.h"
#include "client/session.h"
#include "client/thread.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"

namespace kvtier::client {

class Connection {
 public:
  static absl::StatusOr<std::shared_ptr<Connection>> Open(SessionOptions options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Ends the session and waits for its thread. Idempotent; nothing in a forked child.
  void Close();

  const v1::SessionOpened& opened() const { return opened_; }
  const SessionOptions& options() const { return options_; }
  const std::vector<v1::Device>& devices() const { return devices_; }
  v1::KvTier::Stub* stub() const { return live_->stub.get(); }

  bool InForkedChild() const;
  SessionState state() const;
  // OK if a call may be made; see Session::status().
  absl::Status CheckCall() const;
  // OK if in-process work may read (or also write) the memory of a cache. A lost daemon's memory
  // may be read. Written it may not be: if in truth only the connection broke, the daemon has
  // given the host rows to others.
  absl::Status CheckMemory(bool writes) const;
  bool WaitUntilEnded(absl::Duration timeout) const;

  // One unary call under the deadline `now + timeout`:
  //   Call("AdmitRequest", &v1::KvTier::Stub::AdmitRequest, request, options().call_timeout)
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const char* name,
                                grpc::Status (v1::KvTier::Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                const Request& request, absl::Duration timeout) const {
    if (absl::Status status = CheckCall(); !status.ok()) return status;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    Response response;
    const grpc::Status status = (stub()->*method)(&context, request, &response);
    if (!status.ok()) return CallError(name, status, timeout);
    return response;
  }

  // What a call's failure means, with a text that helps.
  absl::Status CallError(const char* name, const grpc::Status& status,
                         absl::Duration timeout) const;

  // False if this session already has a cache of that name.
  bool ClaimCache(const std::string& cache);
  void DisclaimCache(const std::string& cache);
  // Runs `ended` once when the session has ended, on the session's thread, while `cache` is
  // claimed; at once if it has ended already.
  void OnEnd(const std::string& cache, std::function<void()> ended);

  // Redeems a token at the descriptor socket. The caller closes what it gets.
  absl::StatusOr<int> RedeemToken(const std::string& token) const;

 private:
  // What a forked child must neither use nor destroy: threads that are not there, locks that
  // nobody will release.
  struct Live {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::KvTier::Stub> stub;
    grpc::ClientContext context;  // of the session's call
    Thread reader;
  };

  explicit Connection(SessionOptions options);

  absl::Status StatusOf(SessionState state) const KVTIER_CLIENT_REQUIRES(mutex_);
  absl::Status WaitUntilOpened();
  absl::Status OpeningError(const grpc::Status& status) const;
  // The session's thread.
  void ReadEvents();
  void HandleEvent(const v1::SessionEvent& event);
  void HandleEnd(const grpc::Status& status);
  void Tell(SessionState state, const std::string& message) const;

  const SessionOptions options_;
  const pid_t pid_;
  std::unique_ptr<Live> live_;
  // Written by the session's thread before opened_or_ended_, constant afterwards.
  v1::SessionOpened opened_;
  std::vector<v1::Device> devices_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool opened_or_ended_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  bool ended_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  bool closing_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  SessionState state_ KVTIER_CLIENT_GUARDED_BY(mutex_) = SessionState::kOpen;
  std::string message_ KVTIER_CLIENT_GUARDED_BY(mutex_);  // why the state is what it is
  grpc::Status end_status_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  std::map<std::string, std::function<void()>> caches_ KVTIER_CLIENT_GUARDED_BY(mutex_);
};

}  // namespace kvtier::client
