#include "server/service/control_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <utility>

#include "server/core/error.h"

namespace kvtier {
namespace {

TEST(ControlExecutor, RunsEverythingOnce) {
  std::atomic<int> ran{0};
  {
    auto executor = ControlExecutor::Start({.threads = 4, .queue_max = 1000});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE((*executor)->Submit("kv", [&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ControlExecutor, RunsAsManyAtATimeAsItHasThreads) {
  auto executor = ControlExecutor::Start({.threads = 2, .queue_max = 4});
  ASSERT_TRUE(executor.ok()) << executor.status();
  // Each waits for the other: with one thread this would hang.
  std::promise<void> first, second;
  auto first_started = first.get_future().share(), second_started = second.get_future().share();
  std::promise<void> done;
  ASSERT_TRUE((*executor)
                  ->Submit("kv",
                           [&] {
                             first.set_value();
                             second_started.wait();
                           })
                  .ok());
  ASSERT_TRUE((*executor)
                  ->Submit("other",
                           [&] {
                             second.set_value();
                             first_started.wait();
                             done.set_value();
                           })
                  .ok());
  done.get_future().wait();
}

void ExpectPassed(int32_t threads) {
  std::promise<void> release;
  auto released = release.get_future().share();
  std::atomic<int> ran{0};
  {
    auto executor = ControlExecutor::Start({.threads = threads, .queue_max = 100});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE((*executor)
                      ->Submit("stuck",
                               [&] {
                                 released.wait();
                                 ++ran;
                               })
                      .ok());
    }
    std::promise<void> passed;
    ASSERT_TRUE((*executor)->Submit("other", [&] { passed.set_value(); }).ok());
    passed.get_future().wait();  // would hang
    EXPECT_EQ(ran, 0);
    release.set_value();
  }
  EXPECT_EQ(ran, 50);
}

TEST(ControlExecutor, WorkOfAnotherCachePassesWhatStandsStill) {
  for (const int32_t threads : {2, 3, 4, 8}) ExpectPassed(threads);
}

TEST(ControlExecutor, AFullQueueRefusesAtOnceWithAHint) {
  std::promise<void> release;
  auto released = release.get_future().share();
  std::atomic<int> ran{0};
  {
    auto executor = ControlExecutor::Start({.threads = 1, .queue_max = 2});
    ASSERT_TRUE(executor.ok()) << executor.status();
    std::promise<void> started;
    ASSERT_TRUE((*executor)
                    ->Submit("kv",
                             [&] {
                               started.set_value();
                               released.wait();
                               ++ran;
                             })
                    .ok());
    started.get_future().wait();
    EXPECT_TRUE((*executor)->Submit("kv", [&] { ++ran; }).ok());
    EXPECT_TRUE((*executor)->Submit("kv", [&] { ++ran; }).ok());
    const absl::Status refused = (*executor)->Submit("kv", [&] { ran += 100; });
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReasonOf(refused), "LIMIT_REACHED");
    EXPECT_EQ(ErrorMetadataOf(refused)["limit"], "2");
    EXPECT_GT(RetryDelayOf(refused).value_or(absl::ZeroDuration()), absl::ZeroDuration());
    release.set_value();
  }
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace kvtier
