// A server's life: start, health, drain, shutdown.
#include "server/service/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "proto/support/fd_channel.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool Exists(const std::string& path) {
  struct stat file = {};
  return lstat(path.c_str(), &file) == 0;
}

class ServerTest : public ServiceFixture {
 protected:
  // A second server with `options`, on the same node.
  absl::Status StartAnother(const ServerOptions& options) {
    SystemClock clock;
    Log log(&clock);
    auto cpu = MakeBackendForNothing();
    return Server::Start(options, {&clock, &node(), &pool(), cpu.get(), &log}).status();
  }

  static std::unique_ptr<DeviceBackend> MakeBackendForNothing();
};

class NoDevices final : public DeviceBackend {
 public:
  std::vector<DeviceInfo> Devices() const override { return {}; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view, absl::string_view,
                                                         int64_t) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(absl::string_view) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t*, int64_t) override {
    return absl::UnimplementedError("none");
  }
  void StopRegistering() override {}
  absl::Status Health() const override { return absl::OkStatus(); }
};

std::unique_ptr<DeviceBackend> ServerTest::MakeBackendForNothing() {
  return std::make_unique<NoDevices>();
}

TEST_F(ServerTest, Q03_SocketsHaveTheirModeWhateverTheUmask) {
  for (const mode_t mask : {0000, 0022, 0077, 0777}) {
    const mode_t before = umask(mask);
    ServerOptions options = server_options_;
    options.socket_path = folder().File("other.sock");
    options.access.mode = 0640;
    SystemClock clock;
    Log log(&clock);
    auto backend = MakeBackendForNothing();
    auto other = Server::Start(options, {&clock, &node(), &pool(), backend.get(), &log});
    umask(before);
    ASSERT_TRUE(other.ok()) << other.status();
    for (const char* name : {"other.sock", "other.sock.fd"}) {
      struct stat file = {};
      ASSERT_EQ(lstat(folder().File(name).c_str(), &file), 0);
      EXPECT_EQ(file.st_mode & 07777, 0640) << name << " under umask " << mask;
    }
  }
}

TEST_F(ServerTest, D15_RemovesItsFiles) {
  const std::string path = server().socket_path();
  for (const char* suffix : {"", ".fd", ".lock"}) EXPECT_TRUE(Exists(path + suffix)) << suffix;
  EXPECT_THAT(server().Shutdown(absl::Seconds(60)), IsEmpty());
  for (const char* suffix : {"", ".fd", ".lock"}) EXPECT_FALSE(Exists(path + suffix)) << suffix;
}

TEST_F(ServerTest, D14_ASecondServerIsRefusedAndTheFirstGoesOn) {
  const absl::Status refused = StartAnother(server_options_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(server().socket_path()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("in use"));
  EXPECT_EQ(Stats().boot_id(), node().boot_id());
  // Also on a connection of its own.
  v1::GetStatsResponse response;
  auto fresh = v1::KvTierAdmin::NewStub(NewChannel());
  EXPECT_TRUE(
      Call(fresh.get(), &v1::KvTierAdmin::Stub::GetStats, v1::GetStatsRequest(), &response).ok());
}

TEST_F(ServerTest, ABadTcpAddressIsAnErrorThatNamesIt) {
  for (const char* address : {"127.0.0.1:70000", "no host:1", "127.0.0.1"}) {
    ServerOptions options = server_options_;
    options.socket_path = folder().File("other.sock");
    options.tcp_addresses = {address};
    const absl::Status status = StartAnother(options);
    if (status.ok()) continue;  // a port may be added by the resolver
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_FALSE(Exists(options.socket_path)) << "left after a failed start";
  }
}

class TcpServerTest : public ServiceFixture {
 protected:
  void SetUp() override {
    server_options_.tcp_addresses = {"127.0.0.1:0"};
    ServiceFixture::SetUp();
  }
};

TEST_F(TcpServerTest, ServesTcpWhereAsked) {
  ASSERT_THAT(server().listen_addresses(), SizeIs(2));
  EXPECT_EQ(server().listen_addresses()[0], "unix:" + server().socket_path());
  const std::string address = server().listen_addresses()[1];
  EXPECT_FALSE(absl::EndsWith(address, ":0")) << address;
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  v1::GetNodeInfoResponse info;
  EXPECT_TRUE(Call(v1::KvTierAdmin::NewStub(channel).get(), &v1::KvTierAdmin::Stub::GetNodeInfo,
                   v1::GetNodeInfoRequest(), &info)
                  .ok());
  EXPECT_EQ(info.listen_addresses(1), address);
  // Workers have another way.
  const auto tcp = v1::KvTier::NewStub(channel);
  grpc::ClientContext context;
  SetPatience(&context);
  const auto session = tcp->OpenSession(&context, v1::OpenSessionRequest());
  v1::SessionEvent event;
  EXPECT_FALSE(session->Read(&event));
  EXPECT_TRUE(IsWireError(session->Finish(), grpc::StatusCode::PERMISSION_DENIED, "ACCESS_DENIED"));
}

class PinningServerTest : public ServiceFixture {
 protected:
  void SetUp() override { StartServer(); }
};

TEST_F(PinningServerTest, Q02_AnswersBeforeThePoolIsPinned) {
  EXPECT_EQ(Health("liveness"), "SERVING");
  EXPECT_EQ(Health(""), "NOT_SERVING");
  EXPECT_EQ(Health("kvtier.v1.KvTier"), "NOT_SERVING");
  EXPECT_EQ(Health("no.such"), "5");
  EXPECT_EQ(Stats().pool().state(), v1::POOL_STATE_PINNING);

  ClientSession session(stub(), "early");
  v1::AttachCacheRequest request;
  v1::AttachCacheResponse response;
  request.set_session_id(session.id());
  request.set_cache("kv");
  *request.mutable_layout() = SmallLayout();
  EXPECT_TRUE(IsWireError(Call(stub(), &v1::KvTier::Stub::AttachCache, request, &response),
                          grpc::StatusCode::UNAVAILABLE, "POOL_PINNING"));
  StartPool();
  WaitForHealth("", "SERVING");
  WaitForHealth("kvtier.v1.KvTier", "SERVING");
  Attach(session);
}

TEST_F(ServerTest, D23_ALostDeviceIsNotReadyButAlive) {
  WaitForHealth("", "SERVING");
  plan().LoseDevice("test");
  WaitForHealth("", "NOT_SERVING");
  EXPECT_EQ(Health("liveness"), "SERVING");
}

TEST_F(ServerTest, DrainIsSeenAtOnceAndTold) {
  WaitForHealth("", "SERVING");
  ClientSession session(stub(), "worker");
  v1::DrainRequest request;
  v1::DrainResponse response;
  request.set_message("maintenance");
  ASSERT_TRUE(Call(admin(), &v1::KvTierAdmin::Stub::Drain, request, &response).ok());
  EXPECT_EQ(response.sessions(), 1);
  EXPECT_EQ(Health(""), "NOT_SERVING");
  EXPECT_EQ(Health("liveness"), "SERVING");
  EXPECT_EQ(session.Next().draining().message(), "maintenance");
  EXPECT_TRUE(Stats().draining());
  // Nothing new.
  grpc::ClientContext context;
  auto refused = stub()->OpenSession(&context, v1::OpenSessionRequest());
  v1::SessionEvent event;
  EXPECT_FALSE(refused->Read(&event));
  EXPECT_TRUE(IsWireError(refused->Finish(), grpc::StatusCode::UNAVAILABLE, "DRAINING"));
}

TEST_F(ServerTest, D18_ShutdownLetsASwapInEnd) {
  ClientSession session(stub(), "worker");
  Attach(session);
  Admit(session);
  Assign(session, 1);
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  grpc::Status swap_in;
  std::thread caller([&] {
    v1::SwapInResponse response;
    swap_in = Call(stub(), &v1::KvTier::Stub::SwapIn, InlineStep(session, {1, 2}), &response);
  });
  delay->WaitUntilReached();
  std::vector<std::string> stuck = {"not asked"};
  std::thread stopper([&] { stuck = server().Shutdown(absl::Seconds(60)); });
  // While it stops, and before it is done.
  EXPECT_EQ(session.Next().draining().message(), "the daemon stops");
  EXPECT_EQ(session.Next().revoked().message(), "the daemon stops");
  delay->Release();
  caller.join();
  stopper.join();
  EXPECT_TRUE(swap_in.ok()) << swap_in.error_message();
  EXPECT_THAT(stuck, IsEmpty());
  EXPECT_TRUE(session.Finish().ok());
}

TEST_F(ServerTest, D18_ShutdownNamesWhatIsStuck) {
  ClientSession session(stub(), "worker");
  Attach(session);
  Admit(session);
  Assign(session, 1);
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  grpc::Status swap_in;
  std::thread caller([&] {
    v1::SwapInResponse response;
    swap_in = Call(stub(), &v1::KvTier::Stub::SwapIn, InlineStep(session, {1, 2}), &response);
  });
  delay->WaitUntilReached();
  // Calls that were answered are over a little later than their clients know of it.
  const std::vector<std::string> open = {"OpenSession", "SwapIn"};
  WaitUntil([&] { return server().open_calls() == open; });
  // On a busy machine the session's call may not have ended by then, either.
  EXPECT_THAT(server().Shutdown(absl::Milliseconds(50)), Contains("SwapIn"));
  caller.join();
  EXPECT_FALSE(swap_in.ok());
  // Late, and harmless: the call it was for is gone.
  delay->Release();
}

TEST_F(ServerTest, ShutdownDoesNotWaitForWatchers) {
  grpc::ClientContext context;
  v1::WatchStatsRequest request;
  request.mutable_interval()->set_seconds(3600);
  auto watch = admin()->WatchStats(&context, request);
  v1::GetStatsResponse stats;
  ASSERT_TRUE(watch->Read(&stats));
  grpc::ClientContext steps_context;
  auto steps = stub()->RunSteps(&steps_context);
  const absl::Time start = absl::Now();
  EXPECT_THAT(server().Shutdown(absl::Seconds(60)), IsEmpty());
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  EXPECT_FALSE(watch->Read(&stats));
  EXPECT_FALSE(watch->Finish().ok());
  EXPECT_FALSE(steps->Finish().ok());
}

TEST_F(ServerTest, CallsAfterShutdownAreUnavailable) {
  Stats();
  server().Shutdown(absl::ZeroDuration());
  server().Drain("too late");  // finds nobody to tell
  v1::GetStatsResponse response;
  EXPECT_EQ(Call(admin(), &v1::KvTierAdmin::Stub::GetStats, v1::GetStatsRequest(), &response)
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServerTest, TokensAreRedeemedAtTheSocketThatIsAnnounced) {
  ClientSession session(stub(), "worker");
  v1::AttachCacheRequest request;
  v1::AttachCacheResponse response;
  request.set_session_id(session.id());
  request.set_cache("kv");
  *request.mutable_layout() = SmallLayout();
  ASSERT_TRUE(Call(stub(), &v1::KvTier::Stub::AttachCache, request, &response).ok());
  auto socket = ConnectFdSocket(session.opened().fd_socket_path());
  ASSERT_TRUE(socket.ok()) << socket.status();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  // All of them over one connection; each once.
  for (const v1::Segment& segment : response.segments()) {
    ASSERT_EQ(segment.transport(), v1::SEGMENT_TRANSPORT_POSIX_FD);
    EXPECT_TRUE(RedeemFd(*socket, segment.fd_token(), deadline).ok());
    EXPECT_EQ(RedeemFd(*socket, segment.fd_token(), deadline).status().code(),
              absl::StatusCode::kNotFound);
  }
}

TEST_F(ServerTest, D17_SurvivesConnectionsThatSayNothing) {
  for (int i = 0; i < 2000; ++i) {
    // Of the wrong kind, so that it is refused, and of the right kind.
    EXPECT_FALSE(ConnectFdSocket(server().socket_path()).ok());
    auto fd = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    server().socket_path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << i;
    if (i % 3 == 0) {
      EXPECT_GT(send(fd.get(), "PRI * HT", 8, MSG_NOSIGNAL), 0);
    }
  }
  // The daemon may still be noticing that they have gone: a client that waits gets its turn.
  auto fresh = v1::KvTierAdmin::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  context.set_wait_for_ready(true);
  v1::GetStatsResponse response;
  const grpc::Status status = fresh->GetStats(&context, v1::GetStatsRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace kvtier
