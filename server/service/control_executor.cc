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

absl::Status ControlExecutor::Submit(const std::string& cache, std::function<void()> work) {
  MutexLock lock(&mutex_);
  if (queue_.size() >= static_cast<size_t>(options_.queue_max)) {
    return MakeRetryableError(
        absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
        absl::StrCat(options_.queue_max, " calls that may wait are queued already behind ",
                     options_.threads, " that run; try again"),
        kRetryDelay, {{"limit", absl::StrCat(options_.queue_max)}});
  }
  queue_.push_back({cache, std::move(work)});
  changed_.NotifyOne();
  return absl::OkStatus();
}

bool ControlExecutor::TakeLocked(Queued* taken) {
  for (auto queued = queue_.begin(); queued != queue_.end(); ++queued) {
    int32_t& running = running_[queued->cache];
    if (running >= threads_of_a_cache()) continue;
    ++running;
    *taken = std::move(*queued);
    queue_.erase(queued);
    return true;
  }
  return false;
}

void ControlExecutor::Run() {
  for (;;) {
    Queued taken;
    {
      MutexLock lock(&mutex_);
      while (!TakeLocked(&taken)) {
        // What is left, if anything, a thread takes that now runs its cache's work.
        if (stopping_) return;
        changed_.Wait(&mutex_);
      }
    }
    taken.work();
    taken.work = nullptr;
    MutexLock lock(&mutex_);
    // What this cache's work waited for comes next, here.
    const auto running = running_.find(taken.cache);
    if (--running->second == 0) running_.erase(running);
  }
}

}  // namespace kvtier
