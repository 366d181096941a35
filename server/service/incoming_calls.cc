#include "server/service/incoming_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Long enough for some of the calls to have ended.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

absl::Status TooMany(absl::string_view what, size_t used, size_t limit) {
  return MakeRetryableError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat(what, ": ", used, " are there, at most ", limit, "; wait for some to end"),
      kRetryDelay, {{"limit", absl::StrCat(limit)}, {"used", absl::StrCat(used)}});
}

// How much one who has `own` may have, of `limit` of which `all` are taken: half of what others
// leave.
size_t ShareOf(size_t own, size_t all, size_t limit) {
  return (limit - std::min(all - own, limit) + 1) / 2;
}

}  // namespace

IncomingCalls::Place::~Place() { calls_->End(*this); }

size_t IncomingCalls::CapOf(const Counted& counted, Count count, size_t limit,
                            size_t reserved) const {
  if (!counted.is_operator) limit -= std::min(reserved, limit / 16);
  const size_t of_peer = counted.peer->*count;
  if (counted.user == nullptr) return ShareOf(of_peer, use_.*count, limit);
  const size_t of_user = counted.user->*count;
  return ShareOf(of_peer, of_user, ShareOf(of_user, use_.*count, limit));
}

absl::Status IncomingCalls::Check(const Counted& counted, Kind kind) const {
  static constexpr char kOne[] = " of one process, user or address";
  const auto check = [&](absl::string_view what, Count count, size_t cap) {
    const size_t of_peer = counted.peer->*count;
    return of_peer < cap ? absl::OkStatus() : TooMany(absl::StrCat(what, kOne), of_peer, cap);
  };
  const Use& of_connection = counted.connection->use;
  if (of_connection.calls >= limits_.calls_of_connection_max) {
    return TooMany("calls of one connection", of_connection.calls, limits_.calls_of_connection_max);
  }
  KVTIER_RETURN_IF_ERROR(
      check("calls", &Use::calls,
            CapOf(counted, &Use::calls, limits_.calls_max, limits_.calls_reserved)));
  switch (kind) {
    case Kind::kOneRequest:
      return absl::OkStatus();
    case Kind::kWatch:
      return check("calls of Watch", &Use::watches, limits_.watches_of_peer_max);
    case Kind::kStatsWatch:
      return check("calls of WatchStats", &Use::stats_watches, limits_.stats_watches_of_peer_max);
    case Kind::kStream:
      break;
  }
  if (of_connection.streams >= limits_.streams_of_connection_max) {
    return TooMany("calls of RunSteps of one connection", of_connection.streams,
                   limits_.streams_of_connection_max);
  }
  return check("calls of RunSteps", &Use::streams,
               CapOf(counted, &Use::streams, limits_.streams_max, /*reserved=*/0));
}

template <typename Function>
void IncomingCalls::Change(const Counted& counted, const Function& change) {
  change(use_);
  change(counted.connection->use);
  change(*counted.peer);
  if (counted.user != nullptr) change(*counted.user);
}

void IncomingCalls::DropIdle(const Caller& caller, const Counted& counted) {
  if (counted.connection->use.calls == 0) connections_.erase(caller.connection);
  if (counted.peer->calls == 0) peers_.erase(caller.peer);
  if (counted.user != nullptr && counted.user->calls == 0) users_.erase(caller.user);
}

absl::StatusOr<std::shared_ptr<IncomingCalls::Place>> IncomingCalls::Begin(const Caller& caller,
                                                                           Kind kind) {
  MutexLock lock(&mutex_);
  const Counted counted = {.connection = &connections_[caller.connection],
                           .peer = &peers_[caller.peer],
                           .user = caller.user.empty() ? nullptr : &users_[caller.user],
                           .is_operator = caller.is_operator};
  if (absl::Status status = Check(counted, kind); !status.ok()) {
    DropIdle(caller, counted);
    return status;
  }
  Change(counted, [kind](Use& use) {
    ++use.calls;
    if (kind == Kind::kStream) ++use.streams;
    if (kind == Kind::kWatch) ++use.watches;
    if (kind == Kind::kStatsWatch) ++use.stats_watches;
  });
  return std::shared_ptr<Place>(new Place(shared_from_this(), caller, counted, kind));
}

void IncomingCalls::End(const Place& place) {
  MutexLock lock(&mutex_);
  Change(place.counted_, [&place](Use& use) {
    --use.calls;
    if (place.kind_ == Kind::kStream) --use.streams;
    if (place.kind_ == Kind::kWatch) --use.watches;
    if (place.kind_ == Kind::kStatsWatch) --use.stats_watches;
    use.kept_bytes -= place.kept_bytes_;
  });
  DropIdle(place.caller_, place.counted_);
}

absl::Status IncomingCalls::Keep(Place* place, size_t bytes) {
  const Counted& counted = place->counted_;
  MutexLock lock(&mutex_);
  const size_t used = counted.peer->kept_bytes;
  const size_t cap = CapOf(counted, &Use::kept_bytes, limits_.kept_bytes_max, /*reserved=*/0);
  if (bytes > cap - std::min(used, cap)) {
    return TooMany("bytes of requests of one process, user or address", used, cap);
  }
  place->kept_bytes_ = bytes;
  Change(counted, [bytes](Use& use) { use.kept_bytes += bytes; });
  return absl::OkStatus();
}

void IncomingCalls::Receive(std::shared_ptr<Place> place, std::function<void()> start,
                            std::function<void()> give_up) {
  Starts starts;
  {
    MutexLock lock(&mutex_);
    Connection* const connection = place->counted_.connection;
    if (connection->waiting.empty()) turns_.push_back(connection);
    connection->waiting.push_back({std::move(place), std::move(start), std::move(give_up)});
    starts = TakeTurns();
  }
  for (const auto& each : starts) each();
}

void IncomingCalls::Received(const Place* place) {
  Starts starts;
  {
    MutexLock lock(&mutex_);
    const auto found =
        std::find_if(receiving_.begin(), receiving_.end(),
                     [place](const Receiving& receiving) { return receiving.place == place; });
    if (found == receiving_.end()) return;
    receiving_.erase(found);
    Change(place->counted_, [](Use& use) { --use.receiving; });
    starts = TakeTurns();
  }
  for (const auto& each : starts) each();
}

bool IncomingCalls::MayReceive(const Counted& counted) const {
  return counted.connection->use.receiving < limits_.receiving_of_connection_max &&
         counted.peer->receiving <
             CapOf(counted, &Use::receiving, limits_.receiving_max, limits_.receiving_reserved);
}

IncomingCalls::Starts IncomingCalls::TakeTurns() {
  Starts starts;
  // Once around after the last who could start.
  size_t left = turns_.size();
  while (left > 0 && use_.receiving < limits_.receiving_max) {
    --left;
    Connection& connection = *turns_.front();
    Waiting& next = connection.waiting.front();
    if (MayReceive(next.place->counted_)) {
      Change(next.place->counted_, [](Use& use) { ++use.receiving; });
      receiving_.push_back({next.place.get(), clock_->Now(), std::move(next.give_up)});
      // Holds the place until it has run.
      starts.push_back([place = std::move(next.place), start = std::move(next.start)] { start(); });
      connection.waiting.pop_front();
      left = turns_.size();
    }
    turns_.splice(turns_.end(), turns_, turns_.begin());
    if (connection.waiting.empty()) {
      turns_.pop_back();
      left = std::min(left, turns_.size());
    }
  }
  return starts;
}

void IncomingCalls::GiveUpLate() {
  std::vector<std::function<void()>> late;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (Receiving& receiving : receiving_) {
      if (now - receiving.since < limits_.receiving_duration_max) break;
      if (receiving.give_up) late.push_back(std::exchange(receiving.give_up, nullptr));
    }
  }
  for (const auto& each : late) each();
}

size_t IncomingCalls::calls() const {
  MutexLock lock(&mutex_);
  return use_.calls;
}

size_t IncomingCalls::receiving() const {
  MutexLock lock(&mutex_);
  return use_.receiving;
}

}  // namespace kvtier
