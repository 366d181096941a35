// How long a verb may wait.
//
//   node.FreeBlocks(session, "kv", "r", {4}, deadline);  // until then
//
//   bool gave_up = false;
//   auto freed = node.FreeBlocks(session, "kv", "r", {4}, Patience::None(deadline, &gave_up));
//   if (gave_up) ...  // nothing has changed: again, on a thread that may wait
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace kvtier {

class Patience {
 public:
  // Until then. NOLINTNEXTLINE(google-explicit-constructor): what verbs are given mostly.
  Patience(absl::Time deadline) : deadline_(deadline) {}
  // Not at all: where it would have to wait, the verb sets `*gave_up` and fails.
  static Patience None(absl::Time deadline, bool* gave_up) {
    Patience patience(deadline);
    patience.gave_up_ = gave_up;
    return patience;
  }
  // The same, at most until `time`.
  Patience Until(absl::Time time) const {
    Patience patience = *this;
    patience.deadline_ = std::min(deadline_, time);
    return patience;
  }

  // When the verb as a whole is late, whether it may wait or not.
  absl::Time deadline() const { return deadline_; }
  bool may_wait() const { return gave_up_ == nullptr; }
  void GiveUp() const {
    if (gave_up_ != nullptr) *gave_up_ = true;
  }

 private:
  absl::Time deadline_;
  bool* gave_up_ = nullptr;
};

}  // namespace kvtier
