// Every call of the device fails once under every verb of the API, over a real socket: alone and in
// the stream of steps. The answer has code, reason and metadata of the fault; the same verb again
// succeeds; and when the session is gone, all of it is.

#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

constexpr char kReason[] = "DEVICE_ERROR";

absl::Status Fault() {
  return MakeError(absl::StatusCode::kInternal, kReason, "injected",
                   {{"device_error", "injected"}});
}

class RpcFaultTest : public ServiceFixture {
 protected:
  // What became of one verb.
  struct Answer {
    bool ok = false;
    ::testing::AssertionResult is_fault = ::testing::AssertionFailure();
  };
  using Verb = std::pair<std::string, std::function<Answer()>>;
  using Stub = v1::KvTier::Stub;

  template <typename Request, typename Response>
  Answer Unary(grpc::Status (v1::KvTier::Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Response*),
               const std::function<void(Request&)>& fill, Response* kept = nullptr) {
    Request request;
    request.set_session_id(session_->id());
    request.set_cache("kv");
    fill(request);
    Response response;
    const grpc::Status status = Call(stub(), method, request, &response);
    if (kept != nullptr) *kept = response;
    Answer answer = {.ok = status.ok(),
                     .is_fault = IsWireError(status, grpc::StatusCode::INTERNAL, kReason)};
    EXPECT_EQ(WireMetadata(status, "device_error"), status.ok() ? "" : "injected");
    return answer;
  }

  // One verb in a stream of steps of its own.
  Answer Streamed(const std::function<void(v1::RunStepsRequest&)>& fill) {
    grpc::ClientContext context;
    SetPatience(&context);
    const auto steps = stub()->RunSteps(&context);
    v1::RunStepsRequest request;
    request.set_step_id(7);
    fill(request);
    v1::RunStepsResponse response;
    EXPECT_TRUE(steps->Write(request));
    EXPECT_TRUE(steps->Read(&response));
    steps->WritesDone();
    EXPECT_TRUE(steps->Finish().ok()) << "a step's error is not the call's";
    EXPECT_EQ(response.step_id(), 7);
    if (!response.has_error()) return {.ok = true};
    const v1::StepError& error = response.error();
    const auto metadata = error.metadata().find("device_error");
    const bool is_fault = error.code() == grpc::StatusCode::INTERNAL && error.reason() == kReason &&
                          metadata != error.metadata().end() && metadata->second == "injected";
    return {.is_fault = is_fault ? ::testing::AssertionSuccess()
                                 : ::testing::AssertionFailure() << error.DebugString()};
  }

  void FillStep(v1::SwapInRequest& request) const {
    request.set_session_id(session_->id());
    request.set_cache("kv");
    request.mutable_step()->set_num_rows(1);
    request.set_wait(true);
  }
  void FillBackup(v1::BackupRequest& request) const {
    request.set_session_id(session_->id());
    request.set_cache("kv");
    request.mutable_step()->set_num_rows(1);
    request.set_wait(true);
  }

  std::vector<Verb> Verbs() {
    std::vector<Verb> verbs = BeginVerbs();
    for (std::vector<Verb> more : {StepVerbs(), EndVerbs()}) {
      std::move(more.begin(), more.end(), std::back_inserter(verbs));
    }
    return verbs;
  }

  std::vector<Verb> BeginVerbs() {
    return {
        {"AttachCache",
         [this] {
           return Unary<v1::AttachCacheRequest, v1::AttachCacheResponse>(
               &Stub::AttachCache, [](auto& r) { *r.mutable_layout() = SmallLayout(); });
         }},
        {"AdmitRequest",
         [this] {
           return Unary<v1::AdmitRequestRequest, v1::AdmitRequestResponse>(
               &Stub::AdmitRequest, [](auto& r) { r.set_request_id("r"); });
         }},
        {"AssignBlocks",
         [this] {
           return Unary<v1::AssignBlocksRequest, v1::AssignBlocksResponse>(
               &Stub::AssignBlocks,
               [](auto& r) {
                 r.set_request_id("r");
                 r.set_count(2);
               },
               &assigned_);
         }},
    };
  }

  std::vector<Verb> StepVerbs() {
    const auto inline_rows = [](v1::SwapInRequest& r) {
      v1::SwapInRow* const row = r.mutable_inline_()->add_rows();
      row->set_request_id("r");
      row->add_topk(0);
    };
    return {
        {"Backup",
         [this] {
           return Unary<v1::BackupRequest, v1::BackupResponse>(&Stub::Backup,
                                                               [&](auto& r) { FillBackup(r); });
         }},
        {"SwapIn inline",
         [this, inline_rows] {
           return Unary<v1::SwapInRequest, v1::SwapInResponse>(&Stub::SwapIn, inline_rows);
         }},
        {"SwapIn from step buffers",
         [this] {
           return Unary<v1::SwapInRequest, v1::SwapInResponse>(&Stub::SwapIn,
                                                               [&](auto& r) { FillStep(r); });
         }},
        {"ReplayPlan",
         [this] {
           return Unary<v1::ReplayPlanRequest, v1::ReplayPlanResponse>(&Stub::ReplayPlan,
                                                                       [](auto& r) {
                                                                         r.set_num_rows(1);
                                                                         r.set_wait(true);
                                                                       });
         }},
        {"SwapIn streamed",
         [this] { return Streamed([&](auto& r) { FillStep(*r.mutable_swap_in()); }); }},
        {"Backup streamed",
         [this] { return Streamed([&](auto& r) { FillBackup(*r.mutable_backup()); }); }},
    };
  }

  std::vector<Verb> EndVerbs() {
    return {
        {"InvalidateBlocks",
         [this] {
           return Unary<v1::InvalidateBlocksRequest, v1::InvalidateBlocksResponse>(
               &Stub::InvalidateBlocks,
               [this](auto& r) { r.add_block_ids(assigned_.block_ids(0)); });
         }},
        {"FreeBlocks",
         [this] {
           return Unary<v1::FreeBlocksRequest, v1::FreeBlocksResponse>(
               &Stub::FreeBlocks, [this](auto& r) {
                 r.set_request_id("r");
                 r.add_block_ids(assigned_.block_ids(0));
               });
         }},
        {"ReleaseRequest",
         [this] {
           return Unary<v1::ReleaseRequestRequest, v1::ReleaseRequestResponse>(
               &Stub::ReleaseRequest, [](auto& r) { r.set_request_id("r"); });
         }},
        {"DetachCache",
         [this] {
           return Unary<v1::DetachCacheRequest, v1::DetachCacheResponse>(&Stub::DetachCache,
                                                                         [](auto&) {});
         }},
    };
  }

  // One session's life. Returns how many of its verbs failed.
  int Live() {
    session_ = std::make_unique<ClientSession>(stub(), "worker");
    int met = 0;
    for (const auto& [name, verb] : Verbs()) {
      SCOPED_TRACE(name);
      const Answer answer = verb();
      if (answer.ok) continue;
      ++met;
      EXPECT_TRUE(answer.is_fault);
      const Answer again = verb();
      EXPECT_TRUE(again.ok) << "the next attempt: " << again.is_fault.message();
      if (!again.ok) break;
    }
    session_.reset();
    WaitUntil([this] {
      const v1::GetStatsResponse stats = Stats();
      return stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
    });
    EXPECT_EQ(node().DeviceBytesUsed("CPU-0"), 0);
    return met;
  }

  std::unique_ptr<ClientSession> session_;
  v1::AssignBlocksResponse assigned_;
};

TEST_F(RpcFaultTest, EveryCallOfTheDeviceFailsOnce) {
  int met = 0, nth = 1;
  for (;; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    const int64_t faults = plan().faults();
    plan().FailNthCall(nth, Fault());
    met += Live();
    const bool failed = plan().faults() > faults;
    plan().Clear();
    if (!failed || HasFailure()) break;
    ASSERT_LT(nth, 1000);
  }
  EXPECT_GT(nth, 40);
  EXPECT_GT(met, 35);
  RecordProperty("faults", nth - 1);
}

}  // namespace
}  // namespace kvtier
