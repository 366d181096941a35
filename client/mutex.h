// std::mutex and std::condition_variable with thread-safety annotations, for client/ alone.
//
// Not absl::Mutex: the system's Abseil is not built for ThreadSanitizer and gives false races
// there. Nothing calls the daemon or a callback under a lock.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define KVTIER_CLIENT_ATTRIBUTE_(x) __attribute__((x))
#else
#define KVTIER_CLIENT_ATTRIBUTE_(x)
#endif
#define KVTIER_CLIENT_GUARDED_BY(x) KVTIER_CLIENT_ATTRIBUTE_(guarded_by(x))
#define KVTIER_CLIENT_REQUIRES(x) KVTIER_CLIENT_ATTRIBUTE_(requires_capability(x))
#define KVTIER_CLIENT_EXCLUDES(x) KVTIER_CLIENT_ATTRIBUTE_(locks_excluded(x))

namespace kvtier::client {

class KVTIER_CLIENT_ATTRIBUTE_(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() KVTIER_CLIENT_ATTRIBUTE_(acquire_capability()) { mutex_.lock(); }
  void Unlock() KVTIER_CLIENT_ATTRIBUTE_(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class KVTIER_CLIENT_ATTRIBUTE_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) KVTIER_CLIENT_ATTRIBUTE_(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() KVTIER_CLIENT_ATTRIBUTE_(release_capability()) { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  // Waits until `condition()` holds or `timeout` has passed; returns whether it holds.
  // `condition` runs with `mutex` held, as it is held before and after the call.
  template <typename Condition>
  bool WaitFor(Mutex* mutex, absl::Duration timeout, const Condition& condition)
      KVTIER_CLIENT_REQUIRES(mutex) KVTIER_CLIENT_ATTRIBUTE_(no_thread_safety_analysis) {
    // An hour's grain is enough for "for ever", and the sum with "now" cannot overflow.
    const absl::Duration bounded = std::min(timeout, absl::Hours(24 * 365));
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool holds = condition_.wait_for(lock, absl::ToChronoNanoseconds(bounded), condition);
    lock.release();
    return holds;
  }

  template <typename Condition>
  void Wait(Mutex* mutex, const Condition& condition) KVTIER_CLIENT_REQUIRES(mutex)
      KVTIER_CLIENT_ATTRIBUTE_(no_thread_safety_analysis) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock, condition);
    lock.release();
  }

  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace kvtier::client
