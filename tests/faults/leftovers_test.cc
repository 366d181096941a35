// What sessions leave in the daemon's memory when they have ended: nothing, however many there
// were.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/service/service_fixture.h"
#include "tests/faults/allocations.h"

namespace kvtier::faults {
namespace {

// Before anything is counted: tables, threads and pools of libraries grow to their size.
constexpr int kFirst = 200;
constexpr int kMore = 400;
// Less than one each, and more than what comes and goes: the last looks of the statistics have
// those sessions in them that were open at the time.
constexpr int64_t kLeftMax = kMore * 3 / 4;

class LeftoversTest : public ServiceFixture {
 protected:
  // One worker on a connection of its own, from its session to its end.
  void Live(int number) {
    const auto stub = v1::KvTier::NewStub(NewChannel());
    ClientSession session(stub.get(), absl::StrCat("worker-", number));
    // Its cache ends with it.
    Attach(session);
    Admit(session);
    Assign(session, 2);
    v1::SwapInRequest step = InlineStep(session, {0, 1});
    v1::SwapInResponse stepped;
    step.set_wait(true);
    EXPECT_TRUE(Call(stub.get(), &v1::KvTier::Stub::SwapIn, step, &stepped).ok());
    StreamOneStep(stub.get(), step);
  }

  static void StreamOneStep(v1::KvTier::Stub* stub, const v1::SwapInRequest& step) {
    grpc::ClientContext context;
    SetPatience(&context);
    const auto steps = stub->RunSteps(&context);
    v1::RunStepsRequest request;
    v1::RunStepsResponse response;
    *request.mutable_swap_in() = step;
    EXPECT_TRUE(steps->Write(request));
    EXPECT_TRUE(steps->Read(&response));
    steps->WritesDone();
    EXPECT_TRUE(steps->Finish().ok());
  }

  void LiveTimes(int count, const std::function<void(int)>& live) {
    for (int i = 0; i < count; ++i) live(i);
    WaitUntil([&] {
      const v1::GetStatsResponse stats = Stats();
      return stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
    });
  }

  void ExpectNothingLeft(const std::function<void(int)>& live) {
    LiveTimes(kFirst, live);
    const int64_t before = LiveAllocations();
    LiveTimes(kMore, live);
    // gRPC takes a moment to end a connection.
    WaitUntil([&] { return LiveAllocations() <= before + kLeftMax; });
    RecordProperty("left", absl::StrCat(LiveAllocations() - before));
  }
};

TEST_F(LeftoversTest, Sessions) {
  ExpectNothingLeft([&](int number) { Live(number); });
}

TEST_F(LeftoversTest, ConnectionsOfWhoOnlyLooks) {
  ExpectNothingLeft([&](int) {
    v1::ListCachesResponse response;
    EXPECT_TRUE(Call(v1::KvTierAdmin::NewStub(NewChannel()).get(),
                     &v1::KvTierAdmin::Stub::ListCaches, v1::ListCachesRequest(), &response)
                    .ok());
  });
}

// Names that nobody uses twice: requests, caches, sessions that do not exist.
TEST_F(LeftoversTest, Refusals) {
  ExpectNothingLeft([&](int number) {
    v1::AdmitRequestRequest request;
    v1::AdmitRequestResponse response;
    request.set_session_id(absl::StrCat("nobody-", number));
    request.set_cache(absl::StrCat("nothing-", number));
    request.set_request_id(absl::StrCat("r-", number));
    EXPECT_FALSE(Call(stub(), &v1::KvTier::Stub::AdmitRequest, request, &response).ok());
  });
}

}  // namespace
}  // namespace kvtier::faults
