// A daemon without a device, for tests of the client: speaks the API, says what it is told to say
// and remembers what it was asked. Its memory is a FakeCache's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/mutex.h"
#include "client/testing/fake_cache.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"

namespace kvtier::client {

// A new folder under /tmp with a short path; removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FakeDaemon final : private v1::KvTier::Service {
 public:
  FakeDaemon();
  ~FakeDaemon() override;

  const std::string& socket_path() const { return socket_path_; }
  FakeCache& cache() { return cache_; }

  // The next `times` calls (but OpenSession) fail with `status`; OK: they work.
  void FailCalls(const grpc::Status& status, int32_t times = INT32_MAX);
  // Calls made while `hang` is on are answered when it is off, or the daemon ends.
  void Hang(bool hang);
  // The error of the next OpenSession; OK: it opens.
  void FailOpening(const grpc::Status& status);
  void Tell(const v1::SessionEvent& event);
  // Ends all sessions' calls, as the death of a daemon does, with `status`.
  void EndSessions(const grpc::Status& status);

  // How long the last AttachCache's client would wait when it came.
  absl::Duration attach_patience();
  // Names of the calls that came, in order, "AdmitRequest r1".
  std::vector<std::string> calls();

 private:
  grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest*,
                           grpc::ServerWriter<v1::SessionEvent>*) override;
  grpc::Status AttachCache(grpc::ServerContext*, const v1::AttachCacheRequest*,
                           v1::AttachCacheResponse*) override;
  grpc::Status DetachCache(grpc::ServerContext*, const v1::DetachCacheRequest*,
                           v1::DetachCacheResponse*) override;
  grpc::Status AdmitRequest(grpc::ServerContext*, const v1::AdmitRequestRequest*,
                            v1::AdmitRequestResponse*) override;
  grpc::Status ReleaseRequest(grpc::ServerContext*, const v1::ReleaseRequestRequest*,
                              v1::ReleaseRequestResponse*) override;
  grpc::Status AssignBlocks(grpc::ServerContext*, const v1::AssignBlocksRequest*,
                            v1::AssignBlocksResponse*) override;
  grpc::Status RunSteps(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::RunStepsResponse, v1::RunStepsRequest>*) override;

  // Writes the call down, waits while hanging, and says how it ends.
  grpc::Status Enter(const std::string& call);
  void ServeDescriptors();

  TempFolder folder_;
  const std::string socket_path_;
  FakeCache cache_;
  int listener_ = -1;
  std::unique_ptr<grpc::Server> server_;
  std::thread descriptor_thread_;

  Mutex mutex_;
  CondVar changed_;
  bool hang_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  bool stop_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  grpc::Status call_status_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  int32_t failures_left_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;
  grpc::Status open_status_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  int32_t ends_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;  // of sessions, so far
  grpc::Status end_status_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  std::vector<v1::SessionEvent> events_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  absl::Duration attach_patience_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ KVTIER_CLIENT_GUARDED_BY(mutex_);
  int32_t regions_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;
  int32_t blocks_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier::client
