#include "server/device/cpu/operation_queue.h"

#include <atomic>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvtier {
namespace {

// Between two looks at a number that another process writes: nobody tells us when.
constexpr absl::Duration kNap = absl::Microseconds(20);

bool HasCome(const int32_t* word, int32_t value) {
  const int32_t now =
      std::atomic_ref<int32_t>(*const_cast<int32_t*>(word)).load(std::memory_order_acquire);
  return static_cast<int32_t>(static_cast<uint32_t>(now) - static_cast<uint32_t>(value)) >= 0;
}

}  // namespace

void OperationQueue::Push(Operation operation) {
  if (cpu::Executor* const executor = here()) return operation(*executor);
  MutexLock lock(&mutex_);
  items_.push_back({.operation = std::move(operation)});
  changed_.NotifyAll();
}

void OperationQueue::PushWait(const int32_t* word, int32_t value) {
  MutexLock lock(&mutex_);
  items_.push_back({.word = word, .value = value});
  changed_.NotifyAll();
}

bool OperationQueue::RunOne() {
  Operation operation;
  {
    MutexLock lock(&mutex_);
    while (running_) done_.Wait(&mutex_);
    if (items_.empty()) return false;
    Item& front = items_.front();
    if (front.word != nullptr && !HasCome(front.word, front.value)) return false;
    operation = std::move(front.operation);
    items_.pop_front();
    if (operation == nullptr) return true;
    running_ = true;
  }
  operation(executor_);
  operation = nullptr;  // what it holds is freed before the next one begins
  MutexLock lock(&mutex_);
  running_ = false;
  done_.NotifyAll();
  return true;
}

bool OperationQueue::BeginHere() {
  if (works_here_ != nullptr && !works_here_->load()) return false;
  MutexLock lock(&mutex_);
  if (running_ || closed_ || !items_.empty()) return false;
  running_ = true;
  here_ = std::this_thread::get_id();
  return true;
}

void OperationQueue::EndHere() {
  MutexLock lock(&mutex_);
  running_ = false;
  here_ = {};
  done_.NotifyAll();
}

cpu::Executor* OperationQueue::here() {
  MutexLock lock(&mutex_);
  return here_ == std::this_thread::get_id() ? &executor_ : nullptr;
}

bool OperationQueue::WaitForOperation() {
  MutexLock lock(&mutex_);
  while (items_.empty() && !closed_) changed_.Wait(&mutex_);
  return !items_.empty();
}

void OperationQueue::RunRest() {
  while (size() > 0) {
    if (!RunOne()) absl::SleepFor(kNap);
  }
}

void OperationQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

int OperationQueue::size() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(items_.size());
}

}  // namespace kvtier
