// A daemon in this process on the CPU backend, and a client that plays a Program on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/core/clock.h"
#include "server/service/log.h"
#include "server/service/server.h"
#include "tests/fuzz/program.pb.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {

class WireWorld {
 public:
  WireWorld();
  ~WireWorld();

  // Plays the calls, ends what they opened, and sees to it that nothing is left. Errors: an answer
  // that must not be, or something that did not come back.
  absl::Status Play(const Program& program, Played* played);

 private:
  struct OpenStream;

  void StartServer();
  absl::Status PlayCall(const Call& call, Played* played);
  absl::Status PlayUnary(const google::protobuf::Message& request, Played* played);
  absl::Status PlayOpen(const v1::OpenSessionRequest& request, Played* played);
  absl::Status PlayWatch(const v1::WatchStatsRequest& request, Played* played);
  absl::Status PlaySteps(const v1::RunStepsRequest& request, Played* played);
  absl::Status Judge(const std::string& call, const grpc::Status& status, Played* played) const;
  void CloseSession(int32_t number);
  absl::Status EndAll();

  std::string folder_;
  SystemClock clock_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> generic_;
  std::unique_ptr<v1::KvTier::Stub> stub_;
  std::unique_ptr<v1::KvTierAdmin::Stub> admin_;
  std::vector<std::unique_ptr<OpenStream>> sessions_;  // null: closed
  std::vector<std::string> session_ids_;
  std::unique_ptr<OpenStream> steps_;
};

}  // namespace kvtier::fuzz
