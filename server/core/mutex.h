// std::mutex and std::condition_variable with thread-safety annotations.
//
// Not absl::Mutex: the system's Abseil is not built for ThreadSanitizer and gives false races
// there. Nothing may call a driver, a peer or a callback under a lock.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define KVTIER_ATTRIBUTE_(x) __attribute__((x))
#else
#define KVTIER_ATTRIBUTE_(x)
#endif
#define KVTIER_CAPABILITY(x) KVTIER_ATTRIBUTE_(capability(x))
#define KVTIER_SCOPED_CAPABILITY KVTIER_ATTRIBUTE_(scoped_lockable)
#define KVTIER_GUARDED_BY(x) KVTIER_ATTRIBUTE_(guarded_by(x))
#define KVTIER_PT_GUARDED_BY(x) KVTIER_ATTRIBUTE_(pt_guarded_by(x))
#define KVTIER_REQUIRES(...) KVTIER_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define KVTIER_EXCLUDES(...) KVTIER_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
#define KVTIER_ACQUIRE(...) KVTIER_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define KVTIER_RELEASE(...) KVTIER_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define KVTIER_NO_THREAD_SAFETY_ANALYSIS KVTIER_ATTRIBUTE_(no_thread_safety_analysis)

namespace kvtier {

class KVTIER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() KVTIER_ACQUIRE() { mutex_.lock(); }
  void Unlock() KVTIER_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class KVTIER_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) KVTIER_ACQUIRE(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() KVTIER_RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  // Waits once; may wake for no reason. The caller holds `mutex`.
  void Wait(Mutex* mutex) KVTIER_REQUIRES(mutex) KVTIER_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False if `timeout` passed. One of more than a year is a year: the deadline must fit a clock.
  bool WaitFor(Mutex* mutex, absl::Duration timeout)
      KVTIER_REQUIRES(mutex) KVTIER_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const auto bounded = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    const bool woken = condition_.wait_for(lock, bounded) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace kvtier
