#include "server/core/clock.h"

#include "absl/time/clock.h"

namespace kvtier {

void Clock::WaitFor(CondVar* changed, Mutex* mutex, absl::Duration timeout) const {
  changed->WaitFor(mutex, timeout);
}

absl::Time SystemClock::Now() const { return absl::Now(); }

absl::Time ManualClock::Now() const {
  MutexLock lock(&mutex_);
  return now_;
}

void ManualClock::Advance(absl::Duration by) {
  MutexLock lock(&mutex_);
  now_ += by;
}

}  // namespace kvtier
