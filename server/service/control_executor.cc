#include "server/service/control_executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {

ControlExecutor::ControlExecutor(int threads, int queue_max)
    : queue_max_(static_cast<size_t>(queue_max)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

ControlExecutor::~ControlExecutor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status ControlExecutor::Run(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    if (queue_.size() >= queue_max_) {
      return MakeRetryableError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                                absl::StrCat("more than ", queue_max_,
                                             " control calls are waiting; try again"),
                                absl::Milliseconds(100), {{"limit", absl::StrCat(queue_max_)}});
    }
    queue_.push_back(std::move(task));
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

void ControlExecutor::Loop() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace kvtier
