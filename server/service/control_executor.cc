#include "server/service/control_executor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

// What one queued verb takes, about: an assignment waits for the steps in front of it.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlExecutor>> ControlExecutor::Start(const Options& options) {
  std::unique_ptr<ControlExecutor> executor(new ControlExecutor(options));
  for (int32_t i = 0; i < options.threads; ++i) {
    absl::StatusOr<Thread> thread =
        Thread::Start(absl::StrCat("kv-control-", i), [raw = executor.get()] { raw->Run(); });
    if (!thread.ok()) return thread.status();
    executor->threads_.push_back(*std::move(thread));
  }
  return executor;
}

ControlExecutor::~ControlExecutor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();
}

absl::Status ControlExecutor::Submit(std::function<void()> work) {
  MutexLock lock(&mutex_);
  if (queue_.size() >= static_cast<size_t>(options_.queue_max)) {
    return MakeRetryableError(
        absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
        absl::StrCat(options_.queue_max, " calls that may wait are queued already behind ",
                     options_.threads, " that run; try again"),
        kRetryDelay, {{"limit", absl::StrCat(options_.queue_max)}});
  }
  queue_.push_back(std::move(work));
  changed_.NotifyOne();
  return absl::OkStatus();
}

void ControlExecutor::Run() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kvtier
