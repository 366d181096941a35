#include "server/session/observer_queue.h"

#include <utility>

namespace kvtier {

void ObserverQueue::PostDraining(absl::string_view message) {
  Post({.revoked = false, .message = std::string(message)});
}

void ObserverQueue::PostRevoked(absl::string_view message) {
  Post({.revoked = true, .message = std::string(message)});
}

void ObserverQueue::Silence() {
  MutexLock lock(&mutex_);
  ended_ = true;
  events_.clear();
}

void ObserverQueue::Post(Event event) {
  if (observer_ == nullptr) return;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = event.revoked;
    events_.push_back(std::move(event));
    if (delivering_) return;
    delivering_ = true;
  }
  while (true) {
    Event next;
    {
      MutexLock lock(&mutex_);
      if (events_.empty()) {
        delivering_ = false;
        return;
      }
      next = std::move(events_.front());
      events_.pop_front();
    }
    if (next.revoked) {
      observer_->OnRevoked(next.message);
    } else {
      observer_->OnDraining(next.message);
    }
  }
}

}  // namespace kvtier
