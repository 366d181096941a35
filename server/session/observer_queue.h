// Tells one observer what happens to its session, in order, never under a lock.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "server/core/mutex.h"
#include "server/session/types.h"

namespace kvtier {

// Several threads may drain, evict and close at a time; OnRevoked must still be the last call
// and no two calls may overlap. Whoever posts while nobody delivers, delivers. Thread-safe.
class ObserverQueue {
 public:
  explicit ObserverQueue(std::shared_ptr<SessionObserver> observer)
      : observer_(std::move(observer)) {}

  void PostDraining(absl::string_view message);
  // Nothing is told after this.
  void PostRevoked(absl::string_view message);
  // Nothing more is told.
  void Silence();

 private:
  struct Event {
    bool revoked = false;
    std::string message;
  };
  void Post(Event event);

  const std::shared_ptr<SessionObserver> observer_;  // may be null
  Mutex mutex_;                                      // rank: a leaf
  std::deque<Event> events_ KVTIER_GUARDED_BY(mutex_);
  bool delivering_ KVTIER_GUARDED_BY(mutex_) = false;
  bool ended_ KVTIER_GUARDED_BY(mutex_) = false;
};

}  // namespace kvtier
