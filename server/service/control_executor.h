// A few threads for verbs that may wait, with a bounded queue in front.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"

namespace kvtier {

// A queue without an end would turn overload into calls whose client has long gone. Here the
// call that finds the queue full is told so at once.
//
// Work that waits for one cache's device streams, which may stand still, never has all threads:
// what comes for another cache passes it.
//
// Thread-safe. Work that was taken runs exactly once, also while stopping: it has a call to
// finish. It must look by itself whether it is still wanted.
class ControlExecutor {
 public:
  struct Options {
    int32_t threads = kControlThreads;
    int32_t queue_max = kControlQueueMax;
  };

  // Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED where the system has no thread left.
  static absl::StatusOr<std::unique_ptr<ControlExecutor>> Start(const Options& options);
  // Runs what is queued, then joins.
  ~ControlExecutor();
  ControlExecutor(const ControlExecutor&) = delete;
  ControlExecutor& operator=(const ControlExecutor&) = delete;

  // `cache`: whose streams it may wait for. Never waits. Errors, and then `work` never runs:
  // RESOURCE_EXHAUSTED / LIMIT_REACHED with a hint when to try again.
  absl::Status Submit(const std::string& cache, std::function<void()> work);

  // Work that no thread has taken yet.
  int32_t queue_depth() const {
    MutexLock lock(&mutex_);
    return static_cast<int32_t>(queue_.size());
  }
  int32_t queue_max() const { return options_.queue_max; }

 private:
  struct Queued {
    std::string cache;
    std::function<void()> work;
  };

  explicit ControlExecutor(const Options& options) : options_(options) {}
  void Run();
  // Threads that one cache's work may have at a time: where there are two, one is left to others.
  int32_t threads_of_a_cache() const {
    return std::max(1, options_.threads - std::max(1, options_.threads / 4));
  }
  // Takes the oldest work whose cache may have a thread; false: there is none.
  bool TakeLocked(Queued* taken) KVTIER_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  std::deque<Queued> queue_ KVTIER_GUARDED_BY(mutex_);
  std::map<std::string, int32_t> running_ KVTIER_GUARDED_BY(mutex_);  // by cache; none is 0
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace kvtier
