#include "server/core/mutex.h"

#include <vector>

#include "gtest/gtest.h"
#include "server/core/thread.h"

namespace kvtier {
namespace {

TEST(MutexTest, GuardsACounter) {
  Mutex mutex;
  int64_t counter = 0;
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(*Thread::Start("count", [&] {
        for (int k = 0; k < 1000; ++k) {
          MutexLock lock(&mutex);
          ++counter;
        }
      }));
    }
  }
  EXPECT_EQ(counter, 4000);
}

TEST(MutexTest, WaitReturnsAfterNotify) {
  Mutex mutex;
  CondVar changed;
  bool ready = false, seen = false;
  Thread waiter = *Thread::Start("wait", [&] {
    MutexLock lock(&mutex);
    while (!ready) changed.Wait(&mutex);
    seen = true;
  });
  {
    MutexLock lock(&mutex);
    ready = true;
    changed.NotifyAll();
  }
  waiter.Join();
  EXPECT_TRUE(seen);
}

TEST(MutexTest, WaitForTimesOutAndHoldsTheLockAgain) {
  Mutex mutex;
  CondVar changed;
  mutex.Lock();
  EXPECT_FALSE(changed.WaitFor(&mutex, absl::Milliseconds(1)));
  mutex.Unlock();
  MutexLock lock(&mutex);  // would deadlock if WaitFor had locked it twice
}

TEST(MutexTest, WaitForTakesADurationWithoutEnd) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  Thread notifier = *Thread::Start("notify", [&] {
    MutexLock lock(&mutex);
    ready = true;
    changed.NotifyAll();
  });
  MutexLock lock(&mutex);
  while (!ready) EXPECT_TRUE(changed.WaitFor(&mutex, absl::InfiniteDuration()));
}

}  // namespace
}  // namespace kvtier
