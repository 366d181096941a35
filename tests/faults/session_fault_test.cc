// Every call of the operating system fails once, at every place of two workers' lives below gRPC:
// descriptors, memory, threads, files of the pool folder. The verb that met it says so and leaves
// things as they were, the next attempt works, the rows are right, and nothing leaks.

#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node_life.h"
#include "tests/faults/baseline.h"
#include "tests/faults/system_calls.h"

namespace kvtier::faults {
namespace {

::testing::AssertionResult IsShortage(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  if (absl::IsResourceExhausted(status) &&
      (reason == "LIMIT_REACHED" || reason == "DEVICE_MEMORY_EXHAUSTED")) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << status << " [" << reason << "]";
}

class SessionFaultTest : public NodeLife {
 protected:
  SessionFaultTest() : SessionFaultTest(Options{}) {}
  explicit SessionFaultTest(const Options& options) : NodeLife(options) {}

  void BeginOwnWork() override {
    if (fault_ != nullptr) fault_->Pause();
  }
  void EndOwnWork() override {
    if (fault_ != nullptr) fault_->Resume();
  }

  void FailEach(int64_t calls_min) {
    Live(IsShortage);
    const Baseline before = Baseline::Now();
    int met = 0;
    const int64_t failed = FailEachSystemCall(AllSystemCalls(), 1000, [&](SystemCallFault& fault) {
      fault_ = &fault;
      SCOPED_TRACE(fault.ToString());
      const int now = Live(IsShortage);
      fault.Cancel();
      fault_ = nullptr;
      met += now;
      // What is only a wish of the kernel may be refused: the verb goes on.
      const bool fails = fault.hit().has_value() && fault.hit() != SystemCall::kMadvise;
      EXPECT_EQ(now, fails ? 1 : 0) << "of " << fault.ToString();
      EXPECT_EQ(Difference(before, Baseline::Now()), "") << fault.ToString();
    });
    EXPECT_GT(failed, calls_min);
    EXPECT_GT(met, calls_min);
    RecordProperty("faults", static_cast<int>(failed));
  }

 private:
  SystemCallFault* fault_ = nullptr;
};

TEST_F(SessionFaultTest, EverySystemCallFailsOnce) { FailEach(80); }

class FolderFaultTest : public SessionFaultTest {
 protected:
  FolderFaultTest() : SessionFaultTest(Options{.has_folder = true}) {}
};

TEST_F(FolderFaultTest, EverySystemCallFailsOnce) { FailEach(60); }

}  // namespace
}  // namespace kvtier::faults
