#include "server/service/watchdog.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/core/status_macros.h"

namespace kvtier {

absl::StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(absl::Duration limit,
                                                          std::function<void()> on_expired) {
  std::unique_ptr<Watchdog> watchdog(new Watchdog(std::move(on_expired)));
  KVTIER_ASSIGN_OR_RETURN(
      watchdog->thread_,
      Thread::Start("kv-watchdog", [raw = watchdog.get(), deadline = absl::Now() + limit] {
        raw->Run(deadline);
      }));
  return watchdog;
}

Watchdog::~Watchdog() {
  {
    MutexLock lock(&mutex_);
    disarmed_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void Watchdog::Run(absl::Time deadline) {
  {
    MutexLock lock(&mutex_);
    while (!disarmed_) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) break;
      changed_.WaitFor(&mutex_, left);
    }
    if (disarmed_) return;
  }
  on_expired_();
}

}  // namespace kvtier
