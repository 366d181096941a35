// Threads for verbs that may wait, with a queue that refuses instead of growing.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe. The destructor runs what is queued.
class ControlExecutor {
 public:
  ControlExecutor(int threads, int queue_max);
  ~ControlExecutor();
  ControlExecutor(const ControlExecutor&) = delete;
  ControlExecutor& operator=(const ControlExecutor&) = delete;

  // Runs `task` soon, on a thread of the executor. RESOURCE_EXHAUSTED / LIMIT_REACHED with a
  // retry hint where the queue is full: the task will then never run.
  absl::Status Run(std::function<void()> task);

 private:
  void Loop();

  const size_t queue_max_;
  Mutex mutex_;  // never held while a task runs
  CondVar changed_;
  std::deque<std::function<void()>> queue_ KVTIER_GUARDED_BY(mutex_);
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
