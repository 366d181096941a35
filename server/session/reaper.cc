#include "server/session/reaper.h"

#include <utility>

#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// A device that refuses work for a moment is asked again this much later.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(20);

}  // namespace

Reaper::~Reaper() {
  std::vector<Thread> threads;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    threads = std::move(threads_);
    threads_.clear();
    changed_.NotifyAll();
  }
  for (Thread& thread : threads) thread.Join();
}

absl::Status Reaper::Start() {
  MutexLock lock(&mutex_);
  while (threads_.size() < kThreads) {
    KVTIER_ASSIGN_OR_RETURN(Thread thread, Thread::Start("kvtier-reaper", [this] { Run(); }));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

void Reaper::Post(std::function<void()> job) {
  MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
  changed_.NotifyOne();
}

void Reaper::PostRetry(std::function<void()> job) {
  MutexLock lock(&mutex_);
  retries_.push_back(std::move(job));
  changed_.NotifyOne();
}

void Reaper::Run() {
  while (const std::function<void()> job = Next()) job();
}

std::function<void()> Reaper::Next() {
  MutexLock lock(&mutex_);
  while (true) {
    if (!jobs_.empty()) {
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      return job;
    }
    if (!retries_.empty()) {
      // The pause, cut short by a new job. Real time on purpose: nothing a caller sees hangs on
      // its length, and a test's clock may stand still.
      if (changed_.WaitFor(&mutex_, kRetryInterval) && !jobs_.empty()) continue;
      if (retries_.empty()) continue;
      std::function<void()> job = std::move(retries_.front());
      retries_.pop_front();
      return job;
    }
    if (stopping_) return nullptr;
    changed_.Wait(&mutex_);
  }
}

}  // namespace kvtier
