#include "server/service/open_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "server/core/error.h"
#include "server/core/thread.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OpenCalls, CountsByName) {
  OpenCalls calls;
  EXPECT_THAT(calls.Names(), IsEmpty());
  auto swap_in = std::make_unique<OpenCalls::Entry>(&calls, "SwapIn");
  {
    const OpenCalls::Entry attach(&calls, "AttachCache");
    const OpenCalls::Entry other(&calls, "SwapIn");
    EXPECT_THAT(calls.Names(), ElementsAre("AttachCache", "SwapIn x2"));
  }
  EXPECT_THAT(calls.Names(), ElementsAre("SwapIn"));
  swap_in.reset();
  EXPECT_THAT(calls.Names(), IsEmpty());
}

TEST(OpenCalls, WaitsForTheLast) {
  OpenCalls calls;
  EXPECT_TRUE(calls.WaitUntilNone(absl::InfinitePast()));
  auto entry = std::make_unique<OpenCalls::Entry>(&calls, "SwapIn");
  EXPECT_FALSE(calls.WaitUntilNone(absl::Now() + absl::Milliseconds(5)));
  auto thread = Thread::Start("test", [&] { entry.reset(); });
  ASSERT_TRUE(thread.ok());
  EXPECT_TRUE(calls.WaitUntilNone(absl::InfiniteFuture()));
}

TEST(OpenCalls, ClosedTakesNoMore) {
  OpenCalls calls;
  EXPECT_TRUE(calls.CheckOpen().ok());
  calls.Close();
  EXPECT_EQ(calls.CheckOpen().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(calls.CheckOpen()), "DRAINING");
}

class Recorder final : public OpenCalls::Ending {
 public:
  void End(const absl::Status& status) override { ends.push_back(status); }
  std::vector<absl::Status> ends;
};

TEST(OpenCalls, EndsThoseThatMayEndOnce) {
  OpenCalls calls;
  const auto at_work = std::make_shared<Recorder>(), over = std::make_shared<Recorder>();
  const OpenCalls::Entry entry(&calls, "SwapIn"), stuck(&calls, "AttachCache");
  entry.MayEnd(at_work);
  std::make_unique<OpenCalls::Entry>(&calls, "SwapIn")->MayEnd(over);
  calls.Close();
  calls.EndAll();
  calls.EndAll();
  ASSERT_EQ(at_work->ends.size(), 1u);
  EXPECT_EQ(at_work->ends[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(at_work->ends[0]), "DRAINING");
  EXPECT_THAT(over->ends, IsEmpty());
  EXPECT_EQ(over.use_count(), 1);
  EXPECT_THAT(calls.Names(), ElementsAre("AttachCache", "SwapIn"));
}

TEST(OpenCalls, AnEntryMayComeLast) {
  auto calls = std::make_unique<OpenCalls>();
  const OpenCalls::Entry entry(calls.get(), "SwapIn");
  calls.reset();
}

}  // namespace
}  // namespace kvtier
