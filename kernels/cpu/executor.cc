#include "kernels/cpu/executor.h"

#include <signal.h>

#include <algorithm>

#include "kernels/cpu/workspace.h"

namespace kvtier::cpu {

Executor::Executor(int32_t thread_count) : call_scratch_(std::make_unique<CallScratch>()) {
  thread_count = std::clamp(thread_count, 1, kThreadsMax);
  for (int32_t i = 0; i < thread_count; ++i) workspaces_.push_back(std::make_unique<Workspace>());
  // Signals belong to the process that embeds us, which may wait for them with sigwait().
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int32_t worker = 1; worker < thread_count; ++worker) {
    auto thread = std::make_unique<Thread>(Thread{this, worker, {}});
    if (pthread_create(&thread->handle, nullptr, &ThreadMain, thread.get()) != 0) break;
    threads_.push_back(std::move(thread));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Executor::~Executor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  job_opened_.notify_all();
  for (const auto& thread : threads_) pthread_join(thread->handle, nullptr);
}

void* Executor::ThreadMain(void* thread) {
  const Thread* self = static_cast<const Thread*>(thread);
  self->executor->Serve(self->worker);
  return nullptr;
}

void Executor::Run(int64_t count, Function function, const void* context) {
  if (count <= 1 || threads_.empty()) {
    for (int64_t i = 0; i < count; ++i) function(context, 0, i);
    return;
  }
  next_index_.store(0, std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    function_ = function;
    context_ = context;
    count_ = count;
    ++job_;
  }
  job_opened_.notify_all();
  WorkOff(0, count, function, context);
  // A thread that has not woken up by now finds the job closed: a short job never waits for one.
  std::unique_lock<std::mutex> lock(mutex_);
  function_ = nullptr;
  helper_left_.wait(lock, [this] { return helpers_ == 0; });
}

void Executor::WorkOff(int32_t worker, int64_t count, Function function, const void* context) {
  for (;;) {
    const int64_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    function(context, worker, index);
  }
}

void Executor::Serve(int32_t worker) {
  int64_t job_served = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    job_opened_.wait(lock,
                     [&] { return stopping_ || (function_ != nullptr && job_ != job_served); });
    if (stopping_) return;
    job_served = job_;
    const Function function = function_;
    const void* const context = context_;
    const int64_t count = count_;
    ++helpers_;
    lock.unlock();
    WorkOff(worker, count, function, context);
    lock.lock();
    if (--helpers_ == 0) helper_left_.notify_one();
  }
}

}  // namespace kvtier::cpu
