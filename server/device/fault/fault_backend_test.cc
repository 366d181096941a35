#include "server/device/fault/fault_backend.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/thread.h"
#include "server/device/cpu/cpu_backend.h"

namespace kvtier {
namespace {

using Op = DeviceOperation;

absl::Status LaunchError() {
  return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "SwapIn: cudaErrorLaunchFailure",
                   {{"device_error", "cudaErrorLaunchFailure"}});
}

class FaultBackendTest : public ::testing::Test {
 protected:
  FaultBackendTest()
      : stepper_(std::make_shared<CpuStepper>()),
        plan_(std::make_shared<FaultPlan>()),
        backend_(MakeFaultInjectingBackend(*MakeCpuBackend({.stepper = stepper_}), plan_)) {}

  std::unique_ptr<DeviceStream> Stream() { return *backend_->CreateStream(kCpuDeviceUuid); }

  std::shared_ptr<CpuStepper> stepper_;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<DeviceBackend> backend_;
  uint8_t host_[64] = {};
};

TEST_F(FaultBackendTest, OnlyTheNthCallFails) {
  plan_->FailNth(Op::kAllocate, 2, absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(backend_->Allocate(kCpuDeviceUuid, "a", 64).ok());
  EXPECT_EQ(backend_->Allocate(kCpuDeviceUuid, "b", 64).status(),
            absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(backend_->Allocate(kCpuDeviceUuid, "c", 64).ok());
  EXPECT_EQ(plan_->calls(Op::kAllocate), 3);
  EXPECT_EQ(plan_->calls(Op::kFree), 2);
  EXPECT_EQ(plan_->faults(), 1);
  // Numbers count from the moment they are given.
  plan_->FailNth(Op::kAllocate, 1, absl::ResourceExhaustedError("again"));
  EXPECT_FALSE(backend_->Allocate(kCpuDeviceUuid, "d", 64).ok());
}

TEST_F(FaultBackendTest, CallsOfOneThreadFailInARow) {
  const auto allocate = [&] { return backend_->Allocate(kCpuDeviceUuid, "a", 64).ok(); };
  plan_->FailNthCallHere(2, absl::InternalError("mine"), 2);
  Thread other = *Thread::Start("other", [&] {
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(allocate()) << "they are not the other thread's";
  });
  other.Join();
  EXPECT_TRUE(allocate());
  EXPECT_FALSE(plan_->quiet());
  EXPECT_FALSE(allocate());
  EXPECT_FALSE(allocate());
  EXPECT_TRUE(plan_->quiet());
  EXPECT_TRUE(allocate());
  EXPECT_EQ(plan_->faults(), 2);
}

TEST_F(FaultBackendTest, EveryCallFailsUntilCleared) {
  plan_->FailEvery(Op::kCreateStream, absl::InternalError("no"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(backend_->CreateStream(kCpuDeviceUuid).ok());
  plan_->Clear();
  EXPECT_TRUE(backend_->CreateStream(kCpuDeviceUuid).ok());
}

// Each call that can fail, by its own name, and nothing else with it.
TEST_F(FaultBackendTest, EveryOperationCanFail) {
  auto memory = *backend_->Allocate(kCpuDeviceUuid, "m", 64);
  auto stream = Stream();
  int32_t block = 0, word = 0;
  const std::vector<std::pair<Op, std::function<absl::Status()>>> calls = {
      {Op::kAllocate, [&] { return backend_->Allocate(kCpuDeviceUuid, "x", 1).status(); }},
      {Op::kExport, [&] { return memory->Export().status(); }},
      {Op::kCreateStream, [&] { return backend_->CreateStream(kCpuDeviceUuid).status(); }},
      {Op::kRegisterHost, [&] { return backend_->RegisterHost(host_, 64).status(); }},
      {Op::kSwapIn, [&] { return stream->SwapIn({}); }},
      {Op::kReplayPlan, [&] { return stream->ReplayPlan({}); }},
      {Op::kBackup, [&] { return stream->Backup({}); }},
      {Op::kInvalidate, [&] { return stream->Invalidate({.blocks = &block}); }},
      {Op::kResetRegion, [&] { return stream->ResetRegion({.region = -1}); }},
      {Op::kWrite, [&] { return stream->Write(memory->data(), host_, 64); }},
      {Op::kRead, [&] { return stream->Read(host_, memory->data(), 64); }},
      {Op::kNotify, [&] { return stream->Notify([](const absl::Status&) {}); }},
      {Op::kSignalWord, [&] { return stream->SignalWord(&word, 1); }},
      {Op::kWaitWord, [&] { return stream->WaitWord(&word, 0); }},
  };
  for (const auto& [operation, call] : calls) {
    SCOPED_TRACE(std::string(DeviceOperationName(operation)));
    for (const auto& [other, other_call] : calls) {
      plan_->FailNth(operation, 1, LaunchError());
      EXPECT_EQ(other_call().ok(), other != operation);
      plan_->Clear();
    }
  }
  EXPECT_EQ(calls.size(), static_cast<size_t>(Op::kFree));
}

// A failed enqueue has enqueued nothing, and the next call is not its victim.
TEST_F(FaultBackendTest, K18_AFailedCallDoesNothingAndDoesNotStick) {
  auto memory = *backend_->Allocate(kCpuDeviceUuid, "m", 4);
  auto stream = Stream();
  plan_->FailNth(Op::kWrite, 1, LaunchError());
  EXPECT_EQ(stream->Write(memory->data(), "poison", 4), LaunchError());
  EXPECT_EQ(stepper_->pending(), 0);
  EXPECT_EQ(memory->data()[0], 0);

  EXPECT_TRUE(stream->Write(memory->data(), "good", 4).ok());
  absl::Status seen = absl::UnknownError("not called");
  ASSERT_TRUE(stream->Notify([&](absl::Status status) { seen = std::move(status); }).ok());
  stepper_->RunAll();
  EXPECT_TRUE(seen.ok()) << seen;
  EXPECT_EQ(memory->data()[0], 'g');
}

TEST_F(FaultBackendTest, FailedWorkIsReportedByTheNextNotifyOnly) {
  auto memory = *backend_->Allocate(kCpuDeviceUuid, "m", 4);
  auto stream = Stream();
  std::vector<std::string> seen;
  const auto note = [&](const absl::Status& status) { seen.emplace_back(status.message()); };
  plan_->FailWorkNth(Op::kWrite, 1, absl::InternalError("first"));
  plan_->FailWorkNth(Op::kWrite, 2, absl::InternalError("second"));
  plan_->FailWorkNth(Op::kWrite, 3, absl::InternalError("third"));
  EXPECT_TRUE(stream->Write(memory->data(), "aaaa", 4).ok());
  EXPECT_TRUE(stream->Write(memory->data(), "bbbb", 4).ok());
  EXPECT_TRUE(stream->Notify(note).ok());
  EXPECT_TRUE(stream->Write(memory->data(), "cccc", 4).ok());  // before the first Notify ran
  EXPECT_TRUE(stream->Notify(note).ok());
  EXPECT_TRUE(stream->Notify(note).ok());
  stepper_->RunAll();
  EXPECT_THAT(seen, ::testing::ElementsAre("first", "third", ""));
  EXPECT_EQ(memory->data()[0], 0) << "work that fails is not done";
}

TEST_F(FaultBackendTest, TheNotifyItselfCanReportAnError) {
  auto stream = Stream();
  plan_->FailWorkNth(Op::kNotify, 1, LaunchError());
  std::vector<absl::Status> seen;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(stream->Notify([&](const absl::Status& status) { seen.push_back(status); }).ok());
  }
  stepper_->RunAll();
  EXPECT_THAT(seen, ::testing::ElementsAre(LaunchError(), absl::OkStatus()));
}

TEST_F(FaultBackendTest, AFailedNotifyKeepsTheErrorForTheNext) {
  auto stream = Stream();
  plan_->FailWorkNth(Op::kRead, 1, LaunchError());
  plan_->FailNth(Op::kNotify, 1, absl::UnavailableError("busy"));
  EXPECT_TRUE(stream->Read(host_, host_, 1).ok());
  EXPECT_FALSE(stream->Notify([](const absl::Status&) {}).ok());
  absl::Status seen;
  EXPECT_TRUE(stream->Notify([&](const absl::Status& status) { seen = status; }).ok());
  stepper_->RunAll();
  EXPECT_EQ(seen, LaunchError());
}

TEST_F(FaultBackendTest, ANotifyThatTheInnerStreamRefusesKeepsItToo) {
  const auto inner_plan = std::make_shared<FaultPlan>();
  auto inner = MakeFaultInjectingBackend(*MakeCpuBackend({.stepper = stepper_}), inner_plan);
  auto stream = *MakeFaultInjectingBackend(std::move(inner), plan_)->CreateStream(kCpuDeviceUuid);
  plan_->FailWorkNth(Op::kRead, 1, LaunchError());
  inner_plan->FailNth(Op::kNotify, 1, absl::UnavailableError("busy"));
  EXPECT_TRUE(stream->Read(host_, host_, 1).ok());
  EXPECT_FALSE(stream->Notify([](const absl::Status&) {}).ok());
  absl::Status seen;
  EXPECT_TRUE(stream->Notify([&](const absl::Status& status) { seen = status; }).ok());
  stepper_->RunAll();
  EXPECT_EQ(seen, LaunchError());
}

// What an error of the inner stream is to a delay's own Notify is no secret to the user's.
TEST_F(FaultBackendTest, ADelayHidesNoErrorOfTheInnerStream) {
  const auto inner_plan = std::make_shared<FaultPlan>();
  auto inner = MakeFaultInjectingBackend(*MakeCpuBackend({}), inner_plan);
  auto stream = *MakeFaultInjectingBackend(std::move(inner), plan_)->CreateStream(kCpuDeviceUuid);
  inner_plan->FailWorkNth(Op::kRead, 1, LaunchError());
  auto delay = plan_->DelayNth(Op::kNotify, 1);
  EXPECT_TRUE(stream->Read(host_, host_, 1).ok());
  absl::Status seen;
  EXPECT_TRUE(stream->Notify([&](const absl::Status& status) { seen = status; }).ok());
  delay->WaitUntilReached();
  delay->Release();
  stream.reset();
  EXPECT_EQ(seen, LaunchError());
}

// The stream stands still before the delayed work; the caller does not.
TEST_F(FaultBackendTest, DelayedWorkHoldsTheStreamInOrder) {
  auto backend = MakeFaultInjectingBackend(*MakeCpuBackend({}), plan_);
  auto memory = *backend->Allocate(kCpuDeviceUuid, "m", 4);
  auto stream = *backend->CreateStream(kCpuDeviceUuid);
  std::atomic<int> first = -1, second = -1;
  auto delay = plan_->DelayNth(Op::kWrite, 2);
  ASSERT_TRUE(stream->Write(memory->data(), "aaaa", 4).ok());
  ASSERT_TRUE(stream->Notify([&](const absl::Status&) { first = memory->data()[0]; }).ok());
  ASSERT_TRUE(stream->Write(memory->data(), "bbbb", 4).ok());
  ASSERT_TRUE(stream->Notify([&](const absl::Status&) { second = memory->data()[0]; }).ok());
  delay->WaitUntilReached();
  EXPECT_EQ(first, 'a');
  EXPECT_EQ(second, -1);
  delay->Release();
  stream.reset();  // waits for all
  EXPECT_EQ(second, 'b');
}

TEST_F(FaultBackendTest, D24_DelayedCallsStandStill) {
  for (const Op operation : {Op::kAllocate, Op::kFree}) {
    auto delay = plan_->DelayNth(operation, 1);
    std::atomic<bool> done = false;
    Thread caller = *Thread::Start("caller", [&] {
      backend_->Allocate(kCpuDeviceUuid, "m", 4).value().reset();
      done = true;
    });
    delay->WaitUntilReached();
    EXPECT_TRUE(delay->reached());
    EXPECT_FALSE(done);
    EXPECT_TRUE(backend_->Health().ok()) << "and nobody else waits";
    EXPECT_TRUE(backend_->Allocate(kCpuDeviceUuid, "other", 4).ok());
    delay->Release();
    caller.Join();
    EXPECT_TRUE(done);
  }
}

TEST_F(FaultBackendTest, ADelayThatIsGoneHoldsNothing) {
  plan_->DelayNth(Op::kAllocate, 1);
  EXPECT_TRUE(backend_->Allocate(kCpuDeviceUuid, "m", 4).ok());
}

TEST_F(FaultBackendTest, ALostDeviceFailsEverything) {
  auto memory = *backend_->Allocate(kCpuDeviceUuid, "m", 4);
  auto stream = Stream();
  absl::Status seen;
  ASSERT_TRUE(stream->Notify([&](const absl::Status& status) { seen = status; }).ok());
  plan_->LoseDevice("XID 79");
  const std::vector<absl::Status> statuses = {
      backend_->Health(),
      backend_->Allocate(kCpuDeviceUuid, "x", 4).status(),
      backend_->CreateStream(kCpuDeviceUuid).status(),
      backend_->RegisterHost(host_, 64).status(),
      memory->Export().status(),
      stream->SwapIn({}),
      stream->Notify([](const absl::Status&) {}),
  };
  stepper_->RunAll();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReasonOf(status), "DEVICE_LOST");
  }
  EXPECT_EQ(ErrorReasonOf(seen), "DEVICE_LOST") << "also what was enqueued before";
}

TEST_F(FaultBackendTest, FailEachCallFindsEveryCall) {
  const auto attempt = [&]() -> absl::Status {
    auto memory = backend_->Allocate(kCpuDeviceUuid, "m", 4);
    if (!memory.ok()) return memory.status();
    auto stream = backend_->CreateStream(kCpuDeviceUuid);
    if (!stream.ok()) return stream.status();
    return (*stream)->Write((*memory)->data(), "x", 1);
  };
  const auto failed = FailEachCall(plan_.get(), LaunchError(), 100, attempt);
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(*failed, 3);
  EXPECT_EQ(plan_->calls(Op::kAllocate), plan_->calls(Op::kFree) + 1) << "and nothing leaked";
}

TEST_F(FaultBackendTest, FailEachCallSeesSwallowedErrors) {
  const auto attempt = [&] {
    (void)backend_->Allocate(kCpuDeviceUuid, "m", 4);
    return absl::OkStatus();
  };
  EXPECT_EQ(FailEachCall(plan_.get(), LaunchError(), 100, attempt).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_FALSE(FailEachCall(plan_.get(), LaunchError(), 2,
                            [&] {
                              for (int i = 0; i < 9; ++i) {
                                auto memory = backend_->Allocate(kCpuDeviceUuid, "m", 4);
                                if (!memory.ok()) return memory.status();
                              }
                              return absl::OkStatus();
                            })
                   .ok())
      << "attempts_max";
}

}  // namespace
}  // namespace kvtier
