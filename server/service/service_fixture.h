// A whole server in this process, on the CPU backend with faults, over a real Unix socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/core/clock.h"
#include "server/device/fault/fault_plan.h"
#include "server/service/server.h"

namespace kvtier {

// A folder with a short name, for sockets; removed with all that is in it.
class SocketFolder {
 public:
  SocketFolder();
  ~SocketFolder();
  std::string path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// One open session, as a client holds it.
class ClientSession {
 public:
  // Fails the test if it is not opened.
  ClientSession(v1::KvTier::Stub* stub, const std::string& name);
  ~ClientSession();

  const std::string& id() const { return opened_.session_id(); }
  const v1::SessionOpened& opened() const { return opened_; }
  // The next event; an empty one when the call has ended.
  v1::SessionEvent Next();
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> reader_;
  v1::SessionOpened opened_;
  bool finished_ = false;
};

class ServiceFixture : public ::testing::Test {
 protected:
  ServiceFixture();
  ~ServiceFixture() override;

  // Before a test begins: SetUp of a fixture of its own may change these.
  ServerOptions server_options_;
  // What the server takes for the time; the machine's clock if null.
  std::unique_ptr<ManualClock> manual_clock_;

  void SetUp() override;
  void StartServer();
  void StartPool();

  Server& server() { return *server_; }
  std::unique_ptr<Server>& server_owner() { return server_; }
  Node& node() { return *node_; }
  FaultPlan& plan() { return *plan_; }
  HostPool& pool() { return *pool_; }
  const SocketFolder& folder() const { return folder_; }
  std::shared_ptr<grpc::Channel> NewChannel() const;
  v1::KvTier::Stub* stub() { return stub_.get(); }
  v1::KvTierAdmin::Stub* admin() { return admin_.get(); }

  // top_k 8, hot 16, 32 blocks of 64 rows of 656 bytes.
  static v1::CacheLayout SmallLayout();
  // Fail the test on errors.
  void Attach(const ClientSession& session, const std::string& cache = "kv");
  void Admit(const ClientSession& session, const std::string& request = "r");
  v1::AssignBlocksResponse Assign(const ClientSession& session, int32_t count,
                                  const std::string& request = "r");
  v1::GetStatsResponse Stats();

  // A request for one inline row that names `slots`.
  static v1::SwapInRequest InlineStep(const ClientSession& session, std::vector<int32_t> slots);
  // "SERVING", "NOT_SERVING" or the error code's number.
  std::string Health(const std::string& service);
  // Waits until Health(service) is `status`.
  void WaitForHealth(const std::string& service, const std::string& status);
  // Waits until `condition` holds.
  void WaitUntil(const std::function<bool()>& condition);

 private:
  SocketFolder folder_;
  SystemClock system_clock_;
  std::unique_ptr<Log> log_;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvTier::Stub> stub_;
  std::unique_ptr<v1::KvTierAdmin::Stub> admin_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// Sets a deadline that only a failure ever meets.
void SetPatience(grpc::ClientContext* context);

// Calls a unary method with a fresh context; the answer is dropped.
template <typename Stub, typename Request, typename Response>
grpc::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response) {
  grpc::ClientContext context;
  SetPatience(&context);
  return (stub->*method)(&context, request, response);
}

// Does `status` have this code and reason?
::testing::AssertionResult IsWireError(const grpc::Status& status, grpc::StatusCode code,
                                       const std::string& reason);
// A value of its metadata, or "".
std::string WireMetadata(const grpc::Status& status, const std::string& key);

}  // namespace kvtier
