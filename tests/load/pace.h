// The pace of a load: requests and attacks start at their time. What waits for something to become
// true does not belong here.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvtier::load {

// Returns at once if that has passed.
inline void PaceUntil(absl::Time time) { absl::SleepFor(time - absl::Now()); }
inline void Pace(absl::Duration duration) { absl::SleepFor(duration); }

}  // namespace kvtier::load
