// Time as a parameter.
#pragma once

#include "absl/time/time.h"
#include "server/core/mutex.h"

namespace kvtier {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Waits for a notification of `changed` or until `timeout` has passed; may return early. `mutex`
  // is held. A simulation lets something else happen instead, on the same thread.
  virtual void WaitFor(CondVar* changed, Mutex* mutex, absl::Duration timeout) const
      KVTIER_REQUIRES(mutex);
};

// The machine's clock.
class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// A test's clock: moves when told. Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start) : now_(start) {}
  absl::Time Now() const override;
  void Advance(absl::Duration by);

 private:
  mutable Mutex mutex_;
  absl::Time now_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
