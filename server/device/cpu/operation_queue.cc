#include "server/device/cpu/operation_queue.h"

#include <utility>

namespace kvtier {

void OperationQueue::Push(Operation operation) {
  MutexLock lock(&mutex_);
  operations_.push_back(std::move(operation));
  changed_.NotifyAll();
}

bool OperationQueue::RunOne() {
  Operation operation;
  {
    MutexLock lock(&mutex_);
    while (running_) changed_.Wait(&mutex_);
    if (operations_.empty()) return false;
    operation = std::move(operations_.front());
    operations_.pop_front();
    running_ = true;
  }
  operation(executor_);
  operation = nullptr;  // what it holds is freed before the next one begins
  MutexLock lock(&mutex_);
  running_ = false;
  changed_.NotifyAll();
  return true;
}

bool OperationQueue::WaitForOperation() {
  MutexLock lock(&mutex_);
  while (operations_.empty() && !closed_) changed_.Wait(&mutex_);
  return !operations_.empty();
}

void OperationQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

int OperationQueue::size() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(operations_.size());
}

}  // namespace kvtier
