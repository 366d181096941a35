// Operations of one CPU device stream, done one at a time in the order they came.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "kernels/cpu/executor.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe. Not bounded: who enqueues bounds what is in flight (kOperationsInFlightMax).
class OperationQueue {
 public:
  using Operation = std::function<void(cpu::Executor&)>;

  // `works_here`: BeginHere may be true while this is; null: always.
  explicit OperationQueue(int threads,
                          std::shared_ptr<const std::atomic<bool>> works_here = nullptr)
      : works_here_(std::move(works_here)), executor_(threads) {}

  // Between BeginHere and EndHere of the calling thread the operation is done here.
  void Push(Operation operation);
  // What is pushed after it comes after *word - value >= 0 (cyclic).
  void PushWait(const int32_t* word, int32_t value);
  // Does the oldest operation on the calling thread, after one that another thread is doing.
  // False if there is none, or if it is a wait and its number has not come.
  bool RunOne();
  // Waits until there is an operation (true), or the queue is closed and empty (false).
  bool WaitForOperation();
  // Does everything that is left, on the calling thread, and waits for the numbers in its way.
  void RunRest();
  // As DeviceStream: true if there is nothing to do and nobody is at it.
  bool BeginHere();
  void EndHere();
  // For what the calling thread does itself between the two; else null.
  cpu::Executor* here();
  // Nothing more will be pushed.
  void Close();
  int size() const;

 private:
  struct Item {
    Operation operation;  // null: a wait
    const int32_t* word = nullptr;
    int32_t value = 0;
  };

  const std::shared_ptr<const std::atomic<bool>> works_here_;
  mutable Mutex mutex_;
  CondVar changed_;  // something was pushed, or the queue is closed
  CondVar done_;     // running_ is false again
  std::deque<Item> items_ KVTIER_GUARDED_BY(mutex_);
  bool running_ KVTIER_GUARDED_BY(mutex_) = false;
  std::thread::id here_ KVTIER_GUARDED_BY(mutex_);  // who set running_ by BeginHere; or nobody
  bool closed_ KVTIER_GUARDED_BY(mutex_) = false;
  cpu::Executor executor_;  // used by who set running_
};

}  // namespace kvtier
