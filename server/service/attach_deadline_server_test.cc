// An attach that takes longer than any other call may.

#include <atomic>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/core/limits.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

class AttachDeadlineServerTest : public ServiceFixture {
 protected:
  AttachDeadlineServerTest() { manual_clock_ = std::make_unique<ManualClock>(absl::Now()); }

  // With a device that does its part of it after kCallDurationMax.
  grpc::Status AttachSlowly(absl::Duration patience) {
    const ClientSession session(stub(), "worker");
    const auto memory = plan().DelayNth(DeviceOperation::kAllocate, 1);
    const auto work = plan().DelayNth(DeviceOperation::kWrite, 1);
    grpc::Status status;
    std::thread caller([&] {
      v1::AttachCacheRequest request;
      request.set_session_id(session.id());
      request.set_cache("kv");
      *request.mutable_layout() = SmallLayout();
      v1::AttachCacheResponse response;
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
      status = stub()->AttachCache(&context, request, &response);
      is_answered_ = true;
    });
    memory->WaitUntilReached();
    manual_clock_->Advance(kCallDurationMax + absl::Seconds(1));
    memory->Release();
    work->WaitUntilReached();
    if (patience <= kCallDurationMax) WaitUntil([&] { return is_answered_.load(); });
    work->Release();
    caller.join();
    return status;
  }

 private:
  std::atomic<bool> is_answered_{false};
};

TEST_F(AttachDeadlineServerTest, TheClientsOwnDeadlineCounts) {
  const grpc::Status status = AttachSlowly(absl::Minutes(5));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(AttachDeadlineServerTest, AnEarlierOneToo) {
  EXPECT_TRUE(
      IsWireError(AttachSlowly(kCallDurationMax), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE"));
}

}  // namespace
}  // namespace kvtier
