// Tickets of the operations on one device stream.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "server/core/mutex.h"
#include "server/session/types.h"

namespace kvtier {

// Tickets count from 1 and complete in that order, since one device stream does the work.
//
// A ticket's status is remembered for as long as it is OK or among the newest kFailuresKept
// failures; older tickets are unknown rather than guessed.
//
// Thread-safe. Callbacks run on the thread that completes the ticket, without the lock.
class TicketTable {
 public:
  static constexpr size_t kFailuresKept = 1024;

  // `waiters_max` callers of OnTicket at a time.
  explicit TicketTable(int64_t waiters_max) : waiters_max_(waiters_max) {}

  // The next ticket. One thread at a time issues or withdraws.
  int64_t Issue();
  // Takes the newest ticket back: its work was not enqueued. Nobody has been told of it.
  void Withdraw();
  // `ticket` and with it all older ones are done; then `done` and the ticket's waiters run.
  void Complete(int64_t ticket, const absl::Status& status,
                const std::function<void(const absl::Status&)>& done);

  // `done` runs when `ticket` is done, at once if it is, with its status and the newest
  // completed ticket. Errors: NOT_FOUND / TICKET_UNKNOWN; RESOURCE_EXHAUSTED / LIMIT_REACHED.
  absl::Status OnTicket(int64_t ticket, OperationDone done);

  int64_t in_flight() const;

 private:
  absl::Status CheckTicket(int64_t ticket) const KVTIER_REQUIRES(mutex_);

  const int64_t waiters_max_;
  mutable Mutex mutex_;  // rank: ticket, a leaf
  int64_t issued_ KVTIER_GUARDED_BY(mutex_) = 0;
  int64_t completed_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::multimap<int64_t, OperationDone> waiters_ KVTIER_GUARDED_BY(mutex_);
  std::map<int64_t, absl::Status> failures_ KVTIER_GUARDED_BY(mutex_);
  int64_t forgotten_ KVTIER_GUARDED_BY(mutex_) = 0;  // newest ticket whose failure was dropped
};

}  // namespace kvtier
