#include "server/session/wait.h"

#include <algorithm>

#include "server/session/errors.h"

namespace kvtier {
namespace {

// The longest sleep between two looks at the clock: a test's clock moves without waking anybody.
constexpr absl::Duration kLookInterval = absl::Milliseconds(20);

}  // namespace

bool WaitForChange(CondVar* changed, Mutex* mutex, const Clock& clock, const Patience& patience) {
  if (!patience.may_wait()) {
    patience.GiveUp();
    return false;
  }
  const absl::Duration left = patience.deadline() - clock.Now();
  if (left <= absl::ZeroDuration()) return false;
  clock.WaitFor(changed, mutex, std::min(left, kLookInterval));
  return true;
}

std::function<void(absl::Status)> Completions::Expect() {
  MutexLock lock(&mutex_);
  ++expected_;
  return [self = shared_from_this()](const absl::Status& status) { self->Arrive(status); };
}

void Completions::Cancel() { Arrive(absl::OkStatus()); }

void Completions::Arrive(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (error_.ok()) error_ = status;
  if (--expected_ == 0) changed_.NotifyAll();
}

absl::Status Completions::Wait(const Clock& clock, const Patience& patience) {
  MutexLock lock(&mutex_);
  while (expected_ > 0) {
    if (!WaitForChange(&changed_, &mutex_, clock, patience) && expected_ > 0) {
      return DeadlinePassed("the device was not ready in time");
    }
  }
  return error_;
}

}  // namespace kvtier
