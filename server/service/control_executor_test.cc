#include "server/service/control_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

TEST(ControlExecutor, RunsEverythingOnce) {
  std::atomic<int> ran{0};
  {
    auto executor = ControlExecutor::Start({.threads = 4, .queue_max = 2000});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 1000; ++i)
      ASSERT_TRUE((*executor)->Submit({"kv", "caller of kv"}, [&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ControlExecutor, RunsAsManyAtATimeAsItHasThreads) {
  // Each waits for the other: with one thread this would hang. Here and below what the work uses is
  // older than the executor, which ends with its last work: that somebody waits for one piece of it
  // says nothing of the others, nor that set_value has returned.
  std::promise<void> first, second, done;
  auto first_started = first.get_future().share(), second_started = second.get_future().share();
  auto executor = ControlExecutor::Start({.threads = 2, .queue_max = 4});
  ASSERT_TRUE(executor.ok()) << executor.status();
  ASSERT_TRUE((*executor)
                  ->Submit({"kv", "caller of kv"},
                           [&] {
                             first.set_value();
                             second_started.wait();
                           })
                  .ok());
  ASSERT_TRUE((*executor)
                  ->Submit({"other", "caller of other"},
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
    std::promise<void> passed;
    auto executor = ControlExecutor::Start({.threads = threads, .queue_max = 100});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE((*executor)
                      ->Submit({"stuck", "caller of stuck"},
                               [&] {
                                 released.wait();
                                 ++ran;
                               })
                      .ok());
    }
    ASSERT_TRUE(
        (*executor)->Submit({"other", "caller of other"}, [&] { passed.set_value(); }).ok());
    passed.get_future().wait();  // would hang
    EXPECT_EQ(ran, 0);
    release.set_value();
  }
  EXPECT_EQ(ran, 50);
}

TEST(ControlExecutor, WorkOfAnotherCachePassesWhatStandsStill) {
  for (const int32_t threads : {2, 3, 4, 8}) ExpectPassed(threads);
}

// Threads that wait until they are told not to.
class Held {
 public:
  // The executor's threads hold it as well, and may be gone last.
  std::function<void()> Work() {
    return [this, released = released_] {
      ++started_;
      released.wait();
    };
  }
  void Release() { release_.set_value(); }
  int started() const { return started_; }

 private:
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future().share();
  std::atomic<int> started_{0};
};

void ExpectRefused(const absl::Status& status, const std::string& limit) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(status), "LIMIT_REACHED");
  EXPECT_EQ(ErrorMetadataOf(status)["limit"], limit);
  EXPECT_GT(RetryDelayOf(status).value_or(absl::ZeroDuration()), absl::ZeroDuration());
}

// Caches that are made on devices which stand still, each of somebody else.
TEST(ControlExecutor, WhatMayLastLeavesThreadsToOthers) {
  for (const int32_t threads : {2, 4, 8}) {
    Held held;
    std::promise<void> passed;
    auto executor = ControlExecutor::Start({.threads = threads, .queue_max = 100});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 30; ++i) {
      const std::string name = absl::StrCat(i);
      ASSERT_TRUE((*executor)->Submit({name, name, /*may_last=*/true}, held.Work()).ok());
    }
    ASSERT_TRUE((*executor)->Submit({"other", "other"}, [&] { passed.set_value(); }).ok());
    passed.get_future().wait();  // would hang
    EXPECT_LE(held.started(), threads / 2);
    held.Release();
  }
}

TEST(ControlExecutor, WhatMayLastLeavesPlacesToOthers) {
  Held held;
  auto executor = ControlExecutor::Start({.threads = 2, .queue_max = 8});
  ASSERT_TRUE(executor.ok()) << executor.status();
  const auto submit = [&](int i, bool may_last) {
    const std::string name = absl::StrCat(i);
    return (*executor)->Submit({name, name, may_last}, held.Work());
  };
  ASSERT_TRUE(submit(0, true).ok());
  while (held.started() == 0) std::this_thread::yield();
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(submit(i, true).ok());
  ExpectRefused(submit(5, true), "4");
  EXPECT_TRUE(submit(6, false).ok());
  held.Release();
}

TEST(ControlExecutor, AFullQueueRefusesAtOnceWithAHint) {
  Held held;
  std::atomic<int> ran{0};
  {
    auto executor = ControlExecutor::Start({.threads = 1, .queue_max = 2});
    ASSERT_TRUE(executor.ok()) << executor.status();
    ASSERT_TRUE((*executor)->Submit({"kv", "a"}, held.Work()).ok());
    while (held.started() == 0) std::this_thread::yield();
    EXPECT_TRUE((*executor)->Submit({"kv", "a"}, [&] { ++ran; }).ok());
    EXPECT_TRUE((*executor)->Submit({"other", "b"}, [&] { ++ran; }).ok());
    ExpectRefused((*executor)->Submit({"third", "c"}, [&] { ran += 100; }), "2");
    held.Release();
  }
  EXPECT_EQ(ran, 2);
}

// A worker of 64 caches whose devices all stand still: each cache has its share of the threads and
// of the queue, but all of them are one worker's.
TEST(ControlExecutor, OneCallerOfManyCachesLeavesThreadsAndPlacesToOthers) {
  Held held;
  std::promise<void> passed;
  {
    auto executor = ControlExecutor::Start({.threads = 8, .queue_max = 256});
    ASSERT_TRUE(executor.ok()) << executor.status();
    const auto cache_of = [](int i) { return "cache-" + std::to_string(i % 64); };
    int taken = 0;
    for (int i = 0; i < 7; ++i) {
      ASSERT_TRUE((*executor)->Submit({cache_of(taken++), "greedy"}, held.Work()).ok());
    }
    while (held.started() < 7) std::this_thread::yield();
    for (int i = 0; i < 224; ++i) {
      ASSERT_TRUE((*executor)->Submit({cache_of(taken++), "greedy"}, held.Work()).ok()) << i;
    }
    ExpectRefused((*executor)->Submit({cache_of(taken), "greedy"}, [] {}), "224");
    EXPECT_EQ((*executor)->queue_depth(), 224);
    ASSERT_TRUE((*executor)->Submit({"modest", "modest"}, [&] { passed.set_value(); }).ok());
    passed.get_future().wait();  // would hang
    EXPECT_EQ(held.started(), 7);
    held.Release();
  }
  EXPECT_EQ(held.started(), 231);
}

// One cache of many workers that stands still leaves places as well, also to those workers.
TEST(ControlExecutor, OneCacheOfManyCallersLeavesPlacesToOthers) {
  Held held;
  std::promise<void> passed;
  auto executor = ControlExecutor::Start({.threads = 4, .queue_max = 8});
  ASSERT_TRUE(executor.ok()) << executor.status();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE((*executor)->Submit({"stuck", std::to_string(i)}, held.Work()).ok());
  }
  while (held.started() < 2) std::this_thread::yield();
  for (int i = 2; i < 8; ++i) {
    ASSERT_TRUE((*executor)->Submit({"stuck", std::to_string(i)}, held.Work()).ok());
  }
  ExpectRefused((*executor)->Submit({"stuck", "another"}, [] {}), "6");
  ASSERT_TRUE((*executor)->Submit({"other", "0"}, [&] { passed.set_value(); }).ok());
  passed.get_future().wait();
  EXPECT_EQ(held.started(), 2);
  held.Release();
}

// Of one caller as well, whose other caches may be well.
TEST(ControlExecutor, OneCacheOfACallerLeavesAThreadToItsOthers) {
  for (const int32_t threads : {3, 4, 8, 64}) {
    Held held;
    std::promise<void> passed;
    auto executor = ControlExecutor::Start({.threads = threads, .queue_max = 256});
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE((*executor)->Submit({"stuck", "caller"}, held.Work()).ok());
    }
    ASSERT_TRUE((*executor)->Submit({"other", "caller"}, [&] { passed.set_value(); }).ok());
    passed.get_future().wait();  // would hang
    held.Release();
  }
}

TEST(ControlExecutor, WithoutThreadsWorkRunsWhenItIsTold) {
  auto executor = ControlExecutor::Start({.threads = 0, .queue_max = 2});
  ASSERT_TRUE(executor.ok()) << executor.status();
  int ran = 0;
  const auto submit = [&](const std::string& whose) {
    return (*executor)->Submit({whose, whose}, [&] { ++ran; });
  };
  ASSERT_TRUE(submit("a").ok());
  ASSERT_TRUE(submit("b").ok());
  EXPECT_EQ(ErrorReasonOf(submit("c")), "LIMIT_REACHED");
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE((*executor)->RunOne());
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE((*executor)->RunOne());
  EXPECT_FALSE((*executor)->RunOne());
  // What is queued runs in the end, too.
  ASSERT_TRUE(submit("a").ok());
  executor->reset();
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace kvtier
