// Operations of one CPU device stream, done one at a time in the order they came.
#pragma once

#include <deque>
#include <functional>

#include "absl/status/status.h"
#include "kernels/cpu/executor.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe. Not bounded: who enqueues bounds what is in flight (kOperationsInFlightMax).
class OperationQueue {
 public:
  using Operation = std::function<void(cpu::Executor&)>;

  explicit OperationQueue(int threads) : executor_(threads) {}

  void Push(Operation operation);
  // Does the oldest operation on the calling thread, after one that another thread is doing.
  // False if there is none.
  bool RunOne();
  // Waits until there is an operation (true), or the queue is closed and empty (false).
  bool WaitForOperation();
  // Nothing more will be pushed.
  void Close();
  int size() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Operation> operations_ KVTIER_GUARDED_BY(mutex_);
  bool running_ KVTIER_GUARDED_BY(mutex_) = false;
  bool closed_ KVTIER_GUARDED_BY(mutex_) = false;
  cpu::Executor executor_;  // used by who set running_
};

}  // namespace kvtier
