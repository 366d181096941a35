// Every call of the backend fails once, at every place of two workers' lives: the verb that met it
// says so and leaves things as they were, the next attempt works, and nothing leaks.

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node_life.h"

namespace kvtier {
namespace {

using ::testing::IsSupersetOf;
using Op = DeviceOperation;

absl::Status Fault() {
  return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected",
                   {{"device_error", "injected"}});
}

::testing::AssertionResult IsFault(const absl::Status& status) {
  return IsError(status, absl::StatusCode::kInternal, "DEVICE_ERROR");
}

class NodeFaultTest : public NodeLife {
 protected:
  NodeFaultTest() : NodeFaultTest(Options{}) {}
  explicit NodeFaultTest(const Options& options) : NodeLife(options) {}

  void OnBegin() override { plan_now_(); }

  // Lives with the first call failing, then with the second, until none is left; `fail` plans for
  // the nth.
  void FailEach(const std::function<void(int nth)>& fail, int calls_min) {
    int nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth));
      const int64_t faults = plan().faults();
      plan_now_ = [&] { fail(nth); };
      Live(IsFault);
      const bool failed = plan().faults() > faults;
      plan().Clear();
      if (!failed || HasFailure()) break;
      ASSERT_LT(nth, 1000);
    }
    EXPECT_GT(nth, calls_min) << "the life has fewer calls than it should";
    RecordProperty("faults", nth - 1);
  }

  // Whoever makes it, the reaper's threads as well.
  void FailEachCall(int calls_min) {
    FailEach([this](int nth) { plan().FailNthCall(nth, Fault()); }, calls_min);
  }

  // Each and the one after it: mostly what the verb does next, to leave things as they were, and
  // then its next attempt's first.
  void FailEachTwo(int calls_min) {
    failed_attempts_max_ = 2;
    FailEach(
        [this](int nth) {
          plan().FailNthCall(nth, Fault());
          plan().FailNthCall(nth + 1, Fault());
        },
        calls_min);
  }

  // The verbs' own, the same ones in every life: each of these verbs has some. (The first
  // assignment need not ask a device that has nothing to do.) `in_a_row`: so many, one after
  // another.
  void FailEachOwnCall(int calls_min, int in_a_row = 1) {
    failed_attempts_max_ = in_a_row;
    FailEach([&](int nth) { plan().FailNthCallHere(nth, Fault(), in_a_row); }, calls_min);
    EXPECT_THAT(met_steps(),
                IsSupersetOf({"attach", "attach the other", "admit", "backup",
                              "backup from step buffers", "swap in", "swap in from step buffers",
                              "assign recycled blocks", "swap in anew", "invalidate"}));
  }

  std::function<void()> plan_now_;  // what shall go wrong in a life
};

TEST_F(NodeFaultTest, EveryCallFailsOnce) { FailEachCall(100); }

TEST_F(NodeFaultTest, EveryCallOfAVerbFailsOnce) { FailEachOwnCall(100); }

TEST_F(NodeFaultTest, EveryTwoCallsInARowFail) { FailEachTwo(100); }

TEST_F(NodeFaultTest, EveryTwoCallsOfAVerbInARowFail) { FailEachOwnCall(100, 2); }

// Work that is taken by the device and then not done.
TEST_F(NodeFaultTest, EveryPieceOfWorkFailsOnce) {
  int faults_in_all = 0;
  for (const Op operation : {Op::kSwapIn, Op::kReplayPlan, Op::kBackup, Op::kInvalidate,
                             Op::kResetRegion, Op::kWrite, Op::kRead, Op::kNotify}) {
    SCOPED_TRACE(std::string(DeviceOperationName(operation)));
    lost_writes_ = operation == Op::kWrite;
    int met = 0, nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE("number " + std::to_string(nth));
      const int64_t faults = plan().faults();
      plan_now_ = [&] { plan().FailWorkNth(operation, nth, Fault()); };
      met += Live(IsFault);
      const bool failed = plan().faults() > faults;
      plan().Clear();
      if (!failed || HasFailure()) break;
      ASSERT_LT(nth, 1000);
    }
    EXPECT_GT(met, 0);
    faults_in_all += nth - 1;
  }
  RecordProperty("faults", faults_in_all);
}

// With the pool in a folder, where a cache's file must not stay behind.
class NodeFolderFaultTest : public NodeFaultTest {
 protected:
  NodeFolderFaultTest() : NodeFaultTest(Options{.has_folder = true}) {}
};

TEST_F(NodeFolderFaultTest, EveryCallFailsOnce) { FailEachCall(100); }

// On what says that it is a GPU: numbers are signalled, statistics read on the device stream.
class NodeGpuFaultTest : public NodeFaultTest {
 protected:
  NodeGpuFaultTest() : NodeFaultTest(Options{.claims_cuda = true}) {}
};

TEST_F(NodeGpuFaultTest, EveryCallFailsOnce) { FailEachCall(120); }

TEST_F(NodeGpuFaultTest, EveryCallOfAVerbFailsOnce) { FailEachOwnCall(120); }

TEST_F(NodeGpuFaultTest, EveryTwoCallsInARowFail) { FailEachTwo(120); }

TEST_F(NodeGpuFaultTest, EveryTwoCallsOfAVerbInARowFail) { FailEachOwnCall(120, 2); }

}  // namespace
}  // namespace kvtier
