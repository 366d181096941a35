#include "server/session/observer_queue.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

class Observer : public SessionObserver {
 public:
  void OnDraining(const std::string& message) override {
    EXPECT_EQ(inside_.exchange(true), false) << "two calls at a time";
    events_.push_back(message);
    if (queue_ != nullptr) queue_->PostRevoked("from inside");
    inside_ = false;
  }
  void OnRevoked(const std::string& message) override {
    EXPECT_EQ(inside_.exchange(true), false) << "two calls at a time";
    events_.push_back("revoked " + message);
    inside_ = false;
  }

  std::atomic<bool> inside_ = false;
  std::vector<std::string> events_;
  ObserverQueue* queue_ = nullptr;
};

TEST(ObserverQueueTest, RevokedIsTheLast) {
  const auto observer = std::make_shared<Observer>();
  ObserverQueue queue(observer);
  queue.PostDraining("a");
  queue.PostRevoked("b");
  queue.PostDraining("c");
  queue.PostRevoked("d");
  EXPECT_THAT(observer->events_, ElementsAre("a", "revoked b"));
}

TEST(ObserverQueueTest, AnObserverMayPost) {
  const auto observer = std::make_shared<Observer>();
  ObserverQueue queue(observer);
  observer->queue_ = &queue;
  queue.PostDraining("a");
  EXPECT_THAT(observer->events_, ElementsAre("a", "revoked from inside"));
}

TEST(ObserverQueueTest, SilencedOnesHearNothing) {
  const auto observer = std::make_shared<Observer>();
  ObserverQueue queue(observer);
  queue.Silence();
  queue.PostRevoked("a");
  EXPECT_TRUE(observer->events_.empty());
  ObserverQueue(nullptr).PostRevoked("nobody listens");
}

TEST(ObserverQueueTest, ManyThreadsPostOneIsHeardLast) {
  for (int round = 0; round < 200; ++round) {
    const auto observer = std::make_shared<Observer>();
    auto queue = std::make_shared<ObserverQueue>(observer);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (i == 0) {
          queue->PostRevoked("x");
        } else {
          queue->PostDraining("d");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(observer->events_.empty());
    EXPECT_EQ(observer->events_.back(), "revoked x");
  }
}

}  // namespace
}  // namespace kvtier
