// Every call of the operating system that the daemon's server makes fails once: while it starts and
// stops, and while it takes connections and hands out descriptors. A start that fails says why, and
// leaves nothing in the next one's way; a server that runs goes on.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/support/fd_channel.h"
#include "server/core/shared_memory.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/service/service_fixture.h"
#include "tests/faults/baseline.h"
#include "tests/faults/system_calls.h"

namespace kvtier::faults {
namespace {

constexpr int64_t kAttemptsMax = 1000;
constexpr absl::Duration kPatience = absl::Seconds(60);

// The calls of a start and a stop: without those that its threads make meanwhile.
std::vector<SystemCall> CallsOfStart() {
  std::vector<SystemCall> calls = AllSystemCalls();
  std::erase_if(calls, [](SystemCall call) {
    return call == SystemCall::kPoll || call == SystemCall::kAccept4 || call == SystemCall::kRecv ||
           call == SystemCall::kRead || call == SystemCall::kWrite;
  });
  return calls;
}

class StartFaultTest : public ::testing::Test {
 protected:
  StartFaultTest()
      : pool_(*HostPool::Create({.size_bytes = int64_t{2} << 20}, backend_.get())),
        path_(folder_.File("k.sock")) {}

  // A socket that a killed daemon has left.
  void LeaveStaleSocket() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  absl::Status StartAndStop() {
    Node node({.version = "test"}, &clock_, backend_.get(), pool_.get());
    const ServerOptions options = {.version = "test", .socket_path = path_};
    auto server = Server::Start(options, {&clock_, &node, pool_.get(), backend_.get(), &log_});
    if (!server.ok()) return server.status();
    (*server)->Shutdown(absl::Seconds(1));
    return absl::OkStatus();
  }

  SocketFolder folder_;
  const SystemClock clock_;
  const Log log_{&clock_};
  const std::unique_ptr<DeviceBackend> backend_ = *MakeCpuBackend({});
  const std::unique_ptr<HostPool> pool_;
  const std::string path_;
};

TEST_F(StartFaultTest, EverySystemCallFailsOnce) {
  ASSERT_TRUE(StartAndStop().ok());
  const Baseline before = Baseline::Now();
  int64_t refused = 0;
  const int64_t failed =
      FailEachSystemCall(CallsOfStart(), kAttemptsMax, [&](SystemCallFault& fault) {
        fault.Pause();
        LeaveStaleSocket();
        fault.Resume();
        const absl::Status status = StartAndStop();
        fault.Cancel();
        SCOPED_TRACE(fault.ToString());
        if (!status.ok()) {
          ++refused;
          EXPECT_TRUE(fault.hit().has_value()) << status;
          // One that cannot be asked is taken for alive, and left alone.
          EXPECT_EQ(absl::IsAlreadyExists(status), fault.hit() == SystemCall::kConnect) << status;
        }
        const absl::Status again = StartAndStop();
        EXPECT_TRUE(again.ok()) << again;
        struct stat file = {};
        EXPECT_NE(lstat(path_.c_str(), &file), 0) << "the socket's file is left";
        Baseline now = Baseline::Now();
        now.threads = before.threads;  // gRPC's own come and go
        EXPECT_EQ(Difference(before, now), "");
      });
  EXPECT_GT(failed, 30);
  EXPECT_GT(refused, 20);
  RecordProperty("faults", static_cast<int>(failed));
}

class ServeFaultTest : public ServiceFixture {
 protected:
  // What a worker does until it has a descriptor.
  absl::Status TakeDescriptor() {
    const auto stub = v1::KvTier::NewStub(NewChannel());
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    SetPatience(&context);
    v1::OpenSessionRequest open;
    open.set_client_name("worker");
    const auto events = stub->OpenSession(&context, open);
    v1::SessionEvent event;
    if (!events->Read(&event)) {
      return absl::UnavailableError(events->Finish().error_message());
    }
    v1::AttachCacheRequest attach;
    v1::AttachCacheResponse attached;
    attach.set_session_id(event.opened().session_id());
    attach.set_cache("kv");
    *attach.mutable_layout() = SmallLayout();
    const grpc::Status status = Call(stub.get(), &v1::KvTier::Stub::AttachCache, attach, &attached);
    EXPECT_TRUE(status.ok()) << status.error_message();
    absl::Status redeemed = absl::InternalError("no segment");
    if (attached.segments_size() > 0) {
      const auto socket = ConnectFdSocket(event.opened().fd_socket_path());
      redeemed = socket.status();
      if (socket.ok()) {
        redeemed =
            RedeemFd(*socket, attached.segments(0).fd_token(), absl::Now() + kPatience).status();
      }
    }
    context.TryCancel();
    events->Finish().IgnoreError();
    return redeemed;
  }
};

TEST_F(ServeFaultTest, EverySystemCallFailsOnce) {
  // These are the server's alone; what the other side calls is not failed here.
  const std::vector<SystemCall> calls = {SystemCall::kAccept4, SystemCall::kGetsockopt,
                                         SystemCall::kRecv, SystemCall::kSendmsg};
  const int64_t failed = FailEachSystemCall(calls, 200, [&](SystemCallFault& fault) {
    const absl::Status status = TakeDescriptor();
    fault.Cancel();
    SCOPED_TRACE(fault.ToString());
    EXPECT_TRUE(status.ok() || fault.hit().has_value()) << status;
    const absl::Status again = TakeDescriptor();
    EXPECT_TRUE(again.ok()) << again;
    EXPECT_EQ(Health("liveness"), "SERVING");
  });
  EXPECT_GT(failed, 6);
  RecordProperty("faults", static_cast<int>(failed));
}

}  // namespace
}  // namespace kvtier::faults
