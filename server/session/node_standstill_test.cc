// A device stream that stands still: because its worker's does, or because the device does. What is
// refused then leaves nothing behind, so that neither memory nor the driver's queue fills.

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/fault/fault_plan.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using Code = absl::StatusCode;
using Op = DeviceOperation;

constexpr int kHeld = 32;
constexpr int kTries = 200;  // several times what a notification speaks for

class NodeStandstillTest : public NodeFixture {
 protected:
  NodeStandstillTest()
      : NodeFixture({.manual_clock = true, .claims_cuda = true, .pool_bytes = int64_t{128} << 20}) {
  }

  absl::Status SwapIn(const Worker& worker, std::optional<int32_t> after_worker) {
    return node()
        .SwapIn(worker.session,
                {.cache = "kv", .group = 0, .step_rows = 1, .after_worker = after_worker}, nullptr)
        .status();
  }
  absl::Status BackUp(const Worker& worker, std::optional<int32_t> after_worker) {
    return node()
        .Backup(worker.session, {.cache = "kv", .step_rows = 1, .after_worker = after_worker},
                nullptr)
        .status();
  }
  // Calls `step` until it is refused, and then many times more: how often it was not, and the last
  // error.
  template <typename Step>
  std::pair<int, absl::Status> Fill(const Step& step) {
    int taken = 0;
    while (taken < kTries && step().ok()) ++taken;
    const int64_t before = Enqueued();
    absl::Status refused;
    for (int i = 0; i < kTries; ++i) refused = step();
    EXPECT_EQ(Enqueued(), before) << "what is refused is not enqueued in part";
    return {taken, refused};
  }
  int64_t Enqueued() {
    int64_t calls = 0;
    for (const Op op : {Op::kWaitWord, Op::kSwapIn, Op::kBackup, Op::kRead, Op::kWrite, Op::kNotify,
                        Op::kSignalWord}) {
      calls += plan().calls(op);
    }
    return calls;
  }
  static void WriteNumber(const Worker& worker, int32_t number) {
    auto* const word = reinterpret_cast<int32_t*>(
        const_cast<uint8_t*>(worker.memory->segment(SegmentKind::kProgress)));
    std::atomic_ref<int32_t>(*word).store(number);
  }
};

TEST_F(NodeStandstillTest, D24_CallsBehindAWorkerThatStandsStill) {
  const Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const auto [taken, refused] = Fill([&] { return SwapIn(worker, 1); });
  EXPECT_EQ(taken, kHeld);
  EXPECT_TRUE(IsError(refused, Code::kResourceExhausted, "LIMIT_REACHED"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  WriteNumber(worker, 1);
  while (!SwapIn(worker, 1).ok()) std::this_thread::yield();
}

TEST_F(NodeStandstillTest, D24_AnOperationOnManyGroupsIsManyCommands) {
  const Worker worker =
      OpenAndAttach(SmallLayout{.row_bytes = 64, .groups = 61}.Make());
  Admit(worker, "r");
  const auto [taken, refused] = Fill([&] { return BackUp(worker, 1); });
  EXPECT_EQ(taken, 9) << "of 61 groups each: 512 groups and the last one";
  EXPECT_TRUE(IsError(refused, Code::kResourceExhausted, "LIMIT_REACHED"));
  EXPECT_TRUE(SwapIn(worker, 1).ok()) << "one group";
  WriteNumber(worker, 1);
}

TEST_F(NodeStandstillTest, D24_CallsOnADeviceThatStandsStill) {
  const Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const auto delay = plan().DelayNth(Op::kSwapIn, 1);
  for (int i = 0; i < 2 * kHeld; ++i) ASSERT_TRUE(SwapIn(worker, std::nullopt).ok());
  clock().Advance(absl::Milliseconds(2999));
  ASSERT_TRUE(SwapIn(worker, std::nullopt).ok());
  clock().Advance(absl::Milliseconds(1));
  const auto [taken, refused] = Fill([&] { return SwapIn(worker, std::nullopt); });
  EXPECT_EQ(taken, 0);
  EXPECT_TRUE(IsError(refused, Code::kResourceExhausted, "LIMIT_REACHED"));
  delay->Release();
  while (!SwapIn(worker, std::nullopt).ok()) std::this_thread::yield();
}

}  // namespace
}  // namespace kvtier
