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
  while (RunOne()) {
  }
}

absl::Status Reaper::Start() {
  MutexLock lock(&mutex_);
  while (threads_.size() < static_cast<size_t>(thread_count_)) {
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

bool Reaper::RunOne() {
  std::function<void()> job;
  {
    MutexLock lock(&mutex_);
    job = Take(jobs_.empty() ? retries_ : jobs_);
  }
  if (job) job();
  return job != nullptr;
}

void Reaper::Run() {
  while (const std::function<void()> job = Next()) job();
}

std::function<void()> Reaper::Next() {
  MutexLock lock(&mutex_);
  while (true) {
    if (!jobs_.empty()) return Take(jobs_);
    if (!retries_.empty()) {
      // The pause, cut short by a new job. Real time on purpose: nothing a caller sees hangs on
      // its length, and a test's clock may stand still.
      if (changed_.WaitFor(&mutex_, kRetryInterval) && !jobs_.empty()) continue;
      if (retries_.empty()) continue;
      return Take(retries_);
    }
    if (stopping_) return nullptr;
    changed_.Wait(&mutex_);
  }
}

std::function<void()> Reaper::Take(std::deque<std::function<void()>>& jobs) {
  if (jobs.empty()) return nullptr;
  std::function<void()> job = std::move(jobs.front());
  jobs.pop_front();
  return job;
}

}  // namespace kvtier
