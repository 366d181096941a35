// Threads that free what closed sessions leave.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"

namespace kvtier {

// Freeing device memory and ending device streams may take long, or hang with the driver: none
// of it happens on a caller's thread or on a device stream's own. Several threads, so that one
// that hangs does not keep the others' memory. Waiting for a device stream takes no thread: its
// completion posts the next job.
//
// Thread-safe. Jobs run without a lock.
class Reaper {
 public:
  static constexpr int kThreads = 3;

  // `threads` 0: jobs run when somebody calls RunOne, for a simulation.
  explicit Reaper(int threads = kThreads) : thread_count_(threads) {}
  // Runs what was posted, retries included, then joins.
  ~Reaper();

  // Starts the threads that are missing. Errors: RESOURCE_EXHAUSTED; call again.
  absl::Status Start();
  // Runs `job` soon. Never blocks; also from callbacks of device streams. After Start.
  void Post(std::function<void()> job);
  // Runs `job` after a pause: for what a device refused.
  void PostRetry(std::function<void()> job);
  // Runs the oldest job, or else the oldest retry, on the calling thread. False: there is none.
  bool RunOne();

 private:
  void Run();
  // The next job, or none when it is time to end.
  std::function<void()> Next();
  // Takes the oldest job of `jobs`, or none.
  static std::function<void()> Take(std::deque<std::function<void()>>& jobs);

  const int thread_count_;
  Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ KVTIER_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> retries_ KVTIER_GUARDED_BY(mutex_);
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
