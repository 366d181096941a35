#include "server/session/ticket_table.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/session/errors.h"

namespace kvtier {

int64_t TicketTable::Issue() {
  MutexLock lock(&mutex_);
  return ++issued_;
}

void TicketTable::Withdraw() {
  MutexLock lock(&mutex_);
  --issued_;
}

void TicketTable::Complete(int64_t ticket, const absl::Status& status,
                           const std::function<void(const absl::Status&)>& done) {
  std::vector<OperationDone> waiters;
  {
    MutexLock lock(&mutex_);
    completed_ = ticket;
    if (!status.ok()) failures_.emplace(ticket, status);
    if (failures_.size() > kFailuresKept) {
      forgotten_ = failures_.begin()->first;
      failures_.erase(failures_.begin());
    }
    // Waiters of older tickets left when those completed.
    const auto end = waiters_.upper_bound(ticket);
    for (auto waiter = waiters_.begin(); waiter != end; ++waiter) {
      waiters.push_back(std::move(waiter->second));
    }
    waiters_.erase(waiters_.begin(), end);
  }
  if (done) done(status);
  for (const OperationDone& waiter : waiters) waiter({.status = status, .ticket = ticket});
}

absl::Status TicketTable::OnTicket(int64_t ticket, OperationDone done) {
  OperationOutcome outcome;
  {
    MutexLock lock(&mutex_);
    KVTIER_RETURN_IF_ERROR(CheckTicket(ticket));
    if (ticket > completed_) {
      if (static_cast<int64_t>(waiters_.size()) >= waiters_max_) {
        return LimitReached("calls that wait for tickets of a session and cache", waiters_max_,
                            kBusyRetryDelay);
      }
      waiters_.emplace(ticket, std::move(done));
      return absl::OkStatus();
    }
    const auto failure = failures_.find(ticket);
    if (failure != failures_.end()) outcome.status = failure->second;
    outcome.ticket = completed_;
  }
  done(std::move(outcome));
  return absl::OkStatus();
}

int64_t TicketTable::in_flight() const {
  MutexLock lock(&mutex_);
  return issued_ - completed_;
}

absl::Status TicketTable::CheckTicket(int64_t ticket) const {
  if (ticket > forgotten_ && ticket <= issued_) return absl::OkStatus();
  const std::string known = issued_ > forgotten_
                                ? absl::StrCat("known are ", forgotten_ + 1, "..", issued_)
                                : "there is none yet";
  return MakeError(absl::StatusCode::kNotFound, "TICKET_UNKNOWN",
                   absl::StrCat("no ticket ", ticket, "; ", known),
                   {{"ticket", absl::StrCat(ticket)}, {"limit", absl::StrCat(issued_)}});
}

}  // namespace kvtier
