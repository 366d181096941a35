// Clients that open calls and do not send their requests, against a whole server.
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "server/core/shared_memory.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

class IncomingCallsServerTest : public ServiceFixture {
 protected:
  IncomingCallsServerTest() {
    manual_clock_ = std::make_unique<ManualClock>(absl::FromUnixSeconds(1'000'000'000));
    server_options_.incoming_calls.calls_of_connection_max = 4;
    server_options_.incoming_calls.receiving_of_connection_max = 2;
    server_options_.incoming_calls.streams_of_connection_max = 1;
  }

  // A call whose headers have been sent, and nothing else.
  class HalfCall {
   public:
    HalfCall(const std::shared_ptr<grpc::Channel>& channel, const char* method,
             absl::Duration patience = absl::Seconds(60))
        : stub_(channel) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + patience));
      call_ = stub_.PrepareCall(&context_, method, &queue_);
      call_->StartCall(nullptr);
      Wait();
    }
    ~HalfCall() {
      if (call_ != nullptr) Cancel();
    }
    void Cancel() {
      context_.TryCancel();
      (void)Finish();
    }
    // How the server ended it.
    grpc::Status Finish() {
      grpc::Status status;
      call_->Finish(&status, nullptr);
      Wait();
      call_.reset();
      queue_.Shutdown();
      return status;
    }

   private:
    void Wait() {
      void* tag = nullptr;
      bool ok = false;
      queue_.Next(&tag, &ok);
    }
    grpc::ClientContext context_;
    grpc::CompletionQueue queue_;
    grpc::GenericStub stub_;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  };

  // How a call more is refused where `calls` have taken all there is. Calls of one connection may
  // come in in another order than they were sent: one that gets a place is ended soon, and others
  // have it then.
  static grpc::Status OneMore(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                              std::vector<std::unique_ptr<HalfCall>>* calls) {
    while (true) {
      grpc::Status status = HalfCall(channel, method, absl::Seconds(1)).Finish();
      if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return status;
      calls->push_back(std::make_unique<HalfCall>(channel, method));
    }
  }

  // Is a small request received on `channel`?
  grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
    const auto admin = v1::KvTierAdmin::NewStub(channel);
    v1::GetNodeInfoResponse info;
    return Call(admin.get(), &v1::KvTierAdmin::Stub::GetNodeInfo, v1::GetNodeInfoRequest(), &info);
  }
};

constexpr char kBackup[] = "/kvtier.v1.KvTier/Backup", kOpen[] = "/kvtier.v1.KvTier/OpenSession",
               kSteps[] = "/kvtier.v1.KvTier/RunSteps",
               kStats[] = "/kvtier.v1.KvTierAdmin/GetStats";

TEST_F(IncomingCallsServerTest, AConnectionHasSoManyCalls) {
  const auto channel = NewChannel();
  std::vector<std::unique_ptr<HalfCall>> calls;
  for (const char* const method : {kBackup, kOpen, kStats, kBackup}) {
    calls.push_back(std::make_unique<HalfCall>(channel, method));
  }
  const grpc::Status refused = OneMore(channel, kBackup, &calls);
  EXPECT_TRUE(IsWireError(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  EXPECT_EQ(WireMetadata(refused, "limit"), "4");
  EXPECT_TRUE(Ask(NewChannel()).ok()) << "others go on";
}

TEST_F(IncomingCallsServerTest, WhoDoesNotSendItsRequestIsToldSo) {
  const auto channel = NewChannel();
  HalfCall first(channel, kBackup), second(channel, kOpen);
  // Its turn comes when they have been given up.
  grpc::Status asked;
  std::thread waiting([&] { asked = Ask(channel); });
  EXPECT_TRUE(Ask(NewChannel()).ok());
  manual_clock_->Advance(absl::Seconds(10));
  for (HalfCall* const call : {&first, &second}) {
    const grpc::Status late = call->Finish();
    EXPECT_EQ(late.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(late.error_message(), HasSubstr("not received in time"));
  }
  waiting.join();
  EXPECT_TRUE(asked.ok()) << asked.error_message();
}

TEST_F(IncomingCallsServerTest, WhoLeavesMakesRoom) {
  const auto channel = NewChannel();
  auto first = std::make_unique<HalfCall>(channel, kBackup);
  HalfCall second(channel, kBackup);
  grpc::Status asked;
  std::thread waiting([&] { asked = Ask(channel); });
  first.reset();
  waiting.join();
  EXPECT_TRUE(asked.ok()) << asked.error_message();
}

TEST_F(IncomingCallsServerTest, AConnectionHasSoManyCallsOfSteps) {
  const auto channel = NewChannel();
  std::vector<std::unique_ptr<HalfCall>> steps;
  steps.push_back(std::make_unique<HalfCall>(channel, kSteps));
  EXPECT_TRUE(IsWireError(OneMore(channel, kSteps, &steps), grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "LIMIT_REACHED"));
  EXPECT_TRUE(Ask(channel).ok()) << "an idle one is not waited for";
  manual_clock_->Advance(absl::Hours(1));
  EXPECT_TRUE(Ask(channel).ok());
}

class IncomingTcpCallsServerTest : public IncomingCallsServerTest {
 protected:
  IncomingTcpCallsServerTest() {
    server_options_.tcp_addresses = {"127.0.0.1:0", has_ipv6_ ? "[::1]:0" : "127.0.0.1:0"};
    server_options_.incoming_tcp_calls.calls_max = 4;
  }
  static bool HasIpv6() {
    const UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  const bool has_ipv6_ = HasIpv6();

  // A call that lasts.
  class WatchedHealth {
   public:
    explicit WatchedHealth(const std::shared_ptr<grpc::Channel>& channel)
        : stub_(grpc::health::v1::Health::NewStub(channel)) {
      SetPatience(&context_);
      watch_ = stub_->Watch(&context_, {});
    }
    ~WatchedHealth() {
      context_.TryCancel();
      (void)watch_->Finish();
    }
    bool IsAnswered() {
      grpc::health::v1::HealthCheckResponse told;
      return watch_->Read(&told);
    }

   private:
    const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>> watch_;
  };

  std::shared_ptr<grpc::Channel> ConnectTo(size_t address) {
    return grpc::CreateChannel(server().listen_addresses()[address],
                               grpc::InsecureChannelCredentials());
  }
};

// As its connections, the calls of an address count together, whatever ports and families it has.
TEST_F(IncomingTcpCallsServerTest, LoopbackIsOneAddress) {
  if (!has_ipv6_) GTEST_SKIP() << "this machine has no ::1";
  // What has been answered has its place: connections come in whichever order they like.
  std::vector<std::unique_ptr<WatchedHealth>> watches;
  for (const size_t address : {1, 2}) {
    watches.push_back(std::make_unique<WatchedHealth>(ConnectTo(address)));
    EXPECT_TRUE(watches.back()->IsAnswered());
  }
  for (const size_t address : {1, 2}) {
    EXPECT_TRUE(IsWireError(Ask(ConnectTo(address)), grpc::StatusCode::RESOURCE_EXHAUSTED,
                            "LIMIT_REACHED"));
  }
  EXPECT_TRUE(Ask(NewChannel()).ok()) << "they take nothing from the Unix socket";
}

class LargeRequestTest : public ServiceFixture {
 protected:
  LargeRequestTest() { server_options_.incoming_calls.kept_bytes_max = size_t{4} << 20; }

  // Names and ids take a few bytes; a request that has more would stay for as long as its call.
  template <typename Stub, typename Request, typename Response>
  static void ExpectTooLarge(Stub* stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                             const Request& request) {
    Response response;
    const grpc::Status status = Call(stub, method, request, &response);
    EXPECT_TRUE(IsWireError(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
    EXPECT_EQ(WireMetadata(status, "limit"), "65536");
  }
  // Of blocks that are not there.
  grpc::Status Free(int count) {
    v1::FreeBlocksRequest request;
    v1::FreeBlocksResponse response;
    for (int i = 0; i < count; ++i) request.add_block_ids(1);
    return Call(stub(), &v1::KvTier::Stub::FreeBlocks, request, &response);
  }

  const std::string large_ = std::string(100'000, 'x');
};

TEST_F(LargeRequestTest, IsRefusedWhereThereIsNothingToSay) {
  v1::WaitTicketRequest wait;
  wait.set_session_id(large_);
  ExpectTooLarge(stub(), &v1::KvTier::Stub::WaitTicket, wait);
  v1::GetStatsRequest stats;
  stats.set_cache(large_);
  ExpectTooLarge(admin(), &v1::KvTierAdmin::Stub::GetStats, stats);
  const auto health = grpc::health::v1::Health::NewStub(NewChannel());
  grpc::health::v1::HealthCheckRequest check;
  check.set_service(large_);
  ExpectTooLarge(health.get(), &grpc::health::v1::Health::Stub::Check, check);
  // What is not known of it counts as well.
  v1::GetNodeInfoRequest unknown;
  ASSERT_TRUE(unknown.ParseFromString(wait.SerializeAsString()));
  ExpectTooLarge(admin(), &v1::KvTierAdmin::Stub::GetNodeInfo, unknown);

  grpc::ClientContext context;
  SetPatience(&context);
  grpc::health::v1::HealthCheckResponse told;
  const auto watch = health->Watch(&context, check);
  EXPECT_FALSE(watch->Read(&told));
  EXPECT_TRUE(IsWireError(watch->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
}

TEST_F(LargeRequestTest, CountsAsItIsInMemoryUntilItsCallIsOver) {
  // A byte each as they are sent, and four in memory: more than a process's quarter.
  const grpc::Status refused = Free(300'000);
  EXPECT_TRUE(IsWireError(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  EXPECT_THAT(refused.error_message(), HasSubstr("bytes of requests"));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(IsWireError(Free(60'000), grpc::StatusCode::NOT_FOUND, "SESSION_UNKNOWN"));
  }
}

TEST_F(LargeRequestTest, APeerWatchesHealthSoOften) {
  const auto health = grpc::health::v1::Health::NewStub(NewChannel());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>>> watches;
  grpc::health::v1::HealthCheckResponse told;
  const auto watch = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetPatience(contexts.back().get());
    watches.push_back(health->Watch(contexts.back().get(), {}));
    return watches.back()->Read(&told);
  };
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(watch());
  EXPECT_FALSE(watch());
  EXPECT_EQ(Health("liveness"), "SERVING");
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& each : watches) (void)each->Finish();
}

TEST_F(LargeRequestTest, APeerWatchesStatisticsSoOften) {
  struct Watch {
    // Whether there is a first answer.
    bool Begin(v1::KvTierAdmin::Stub* admin) {
      SetPatience(&context);
      reader = admin->WatchStats(&context, {});
      v1::GetStatsResponse stats;
      return reader->Read(&stats);
    }
    grpc::Status End() {
      context.TryCancel();
      return reader->Finish();
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GetStatsResponse>> reader;
  };
  // However many connections it has.
  const auto other = v1::KvTierAdmin::NewStub(NewChannel());
  std::vector<Watch> watches(8);
  for (size_t i = 0; i < watches.size(); ++i) {
    ASSERT_TRUE(watches[i].Begin(i % 2 == 0 ? admin() : other.get()));
  }
  Watch ninth;
  EXPECT_FALSE(ninth.Begin(admin()));
  const grpc::Status refused = ninth.reader->Finish();
  EXPECT_TRUE(IsWireError(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  EXPECT_THAT(refused.error_message(), HasSubstr("WatchStats"));
  EXPECT_EQ(WireMetadata(refused, "limit"), "8");
  EXPECT_EQ(WireMetadata(refused, "used"), "8");
  Stats();  // who looks once is answered
  EXPECT_EQ(watches[0].End().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([&] {
    Watch again;
    const bool begun = again.Begin(admin());
    (void)again.End();
    return begun;
  });
  for (size_t i = 1; i < watches.size(); ++i) (void)watches[i].End();
}

TEST_F(IncomingCallsServerTest, AShutdownWaitsForNoRequest) {
  const auto channel = NewChannel();
  HalfCall first(channel, kBackup), second(channel, kBackup), third(channel, kBackup);
  server_owner()->Shutdown(absl::ZeroDuration());
  server_owner().reset();
}

}  // namespace
}  // namespace kvtier
