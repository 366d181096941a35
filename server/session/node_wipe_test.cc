// Attaches whose part of the pool has to be wiped first, and whose deadline passes meanwhile.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "server/core/clock.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

constexpr int64_t kStepBytes = int64_t{64} << 20;  // between two looks at the clock
constexpr int64_t kSteps = 3;
constexpr absl::Duration kFuture = absl::Hours(1);

// The future comes after so many looks.
class CountingClock final : public Clock {
 public:
  absl::Time Now() const override {
    if (at_each_look_) at_each_look_();
    const bool is_late = looks_left_.fetch_sub(1) <= 0;
    return is_late ? kStart + kFuture : kStart;
  }
  void SetLooks(int64_t looks) { looks_left_ = looks; }
  void AtEachLook(std::function<void()> what) { at_each_look_ = std::move(what); }

  static constexpr absl::Time kStart = absl::UnixEpoch();

 private:
  mutable std::atomic<int64_t> looks_left_{int64_t{1} << 60};
  std::function<void()> at_each_look_;
};

class NodeWipeTest : public ::testing::Test {
 protected:
  NodeWipeTest() {
    pool_ =
        *HostPool::Create({.size_bytes = kSteps * kStepBytes, .touch_threads = 1}, backend_.get());
    pool_->Start(nullptr);
    EXPECT_TRUE(pool_->WaitReady(absl::InfiniteFuture()).ok());
    node_ = std::make_unique<Node>(NodeOptions{.version = "test"}, &clock_, backend_.get(),
                                   pool_.get());
    session_ = *node_->OpenSession("worker", {.pid = 1, .uid = 1000}, nullptr);
    layout_ = SmallLayout{.block_size = 1024, .row_bytes = 1024}.Make();
    layout_.block_count = kSteps * kStepBytes / (1024 * 1024);
    layout_.max_blocks_per_request = 8;
  }
  // All of the pool is somebody's, and then nobody's.
  void Soil() {
    PoolPart part = *pool_->Carve(kSteps * kStepBytes);
    rows_ = part.data();
    std::memset(rows_, 0xab, kSteps * kStepBytes);
  }
  absl::Status Attach(absl::Time deadline = CountingClock::kStart + absl::Seconds(1)) {
    return node_->AttachCache(session_, "kv", layout_, "", deadline, {}).status();
  }
  int64_t CleanSteps() const {
    int64_t clean = 0;
    for (int64_t i = 0; i < kSteps; ++i) clean += rows_[i * kStepBytes] == 0;
    return clean;
  }
  bool AllZero() const {
    return rows_[0] == 0 && std::memcmp(rows_, rows_ + 1, kSteps * kStepBytes - 1) == 0;
  }

  const std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  const std::unique_ptr<DeviceBackend> backend_ =
      MakeFaultInjectingBackend(*MakeCpuBackend({}), plan_);
  CountingClock clock_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Node> node_;
  std::string session_;
  CacheLayout layout_;
  uint8_t* rows_ = nullptr;
};

// A little more at each attempt, however early its deadline.
TEST_F(NodeWipeTest, ADeadlineThatPassesAtAnyLookCostsNoWork) {
  Soil();
  bool was_partly_clean = false;
  int attempts = 0;
  for (absl::Status status = absl::UnknownError(""); !status.ok();) {
    const int64_t clean_before = CleanSteps();
    ASSERT_LT(++attempts, 100);
    clock_.SetLooks(attempts);
    status = Attach();
    clock_.SetLooks(int64_t{1} << 60);
    if (status.ok()) break;
    EXPECT_TRUE(IsError(status, absl::StatusCode::kDeadlineExceeded, "DEADLINE"));
    while (pool_->stats().used_bytes > 0) std::this_thread::yield();
    EXPECT_GE(CleanSteps(), clean_before);
    was_partly_clean |= CleanSteps() > 0 && CleanSteps() < kSteps;
  }
  EXPECT_TRUE(was_partly_clean) << "it looks between two steps";
  EXPECT_TRUE(AllZero());
}

// What is wiped and was handed to nobody is not wiped again.
TEST_F(NodeWipeTest, AnAttachThatFailsAfterItsWipeLeavesThePartClean) {
  Soil();
  plan_->FailNth(DeviceOperation::kCreateStream, 1, absl::UnavailableError("no stream"));
  EXPECT_EQ(Attach().code(), absl::StatusCode::kUnavailable);
  while (pool_->stats().used_bytes > 0) std::this_thread::yield();
  EXPECT_TRUE(AllZero());
  rows_[0] = 1;  // nobody has it; what wipes shows itself
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(rows_[0], 1);
  // This one a worker had.
  node_->CloseSession(session_);
  while (pool_->stats().used_bytes > 0) std::this_thread::yield();
  session_ = *node_->OpenSession("worker", {.pid = 1, .uid = 1000}, nullptr);
  ASSERT_TRUE(Attach().ok());
  EXPECT_TRUE(AllZero());
}

// The worker is gone: nobody wants the cache any more.
TEST_F(NodeWipeTest, ASessionThatEndsIsNotWipedForAnyLonger) {
  Soil();
  bool is_closed = false;
  clock_.AtEachLook([&] {
    if (CleanSteps() == 1 && !std::exchange(is_closed, true)) node_->CloseSession(session_);
  });
  EXPECT_FALSE(Attach().ok());
  EXPECT_TRUE(is_closed);
  EXPECT_EQ(CleanSteps(), 1);
  EXPECT_EQ(pool_->stats().used_bytes, 0);
}

}  // namespace
}  // namespace kvtier
