// Waiting with a deadline that an injected clock decides.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/session/patience.h"

namespace kvtier {

// Waits for a notification of `changed`, or a little while. False: there is no patience left. May
// return true for no reason; call it in a loop over the condition. `mutex` is held.
bool WaitForChange(CondVar* changed, Mutex* mutex, const Clock& clock, const Patience& patience)
    KVTIER_REQUIRES(mutex);

// Collects completions of several device streams for one waiting verb.
//
//   auto completions = std::make_shared<Completions>();
//   auto done = completions->Expect();
//   if (!stream->Notify(done).ok()) completions->Cancel();
//   completions->Wait(clock, deadline);
//
// Lives as long as a callback that Expect gave out. Thread-safe.
class Completions : public std::enable_shared_from_this<Completions> {
 public:
  std::function<void(absl::Status)> Expect();
  // A callback that Expect gave out will never run.
  void Cancel();
  // The first error that came in; DEADLINE_EXCEEDED / DEADLINE if not all came.
  absl::Status Wait(const Clock& clock, const Patience& patience);

 private:
  void Arrive(const absl::Status& status);

  Mutex mutex_;  // rank: leaf
  CondVar changed_;
  int expected_ KVTIER_GUARDED_BY(mutex_) = 0;
  absl::Status error_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
