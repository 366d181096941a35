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

size_t IncomingCalls::CapOf(const Caller& caller, Count count, size_t limit,
                            size_t reserved) const {
  const auto own = [&](const std::map<std::string, Use>& uses, const std::string& name) {
    const auto use = uses.find(name);
    return use == uses.end() ? size_t{0} : use->second.*count;
  };
  if (!caller.is_operator) limit -= std::min(reserved, limit / 16);
  const size_t of_peer = own(peers_, caller.peer);
  if (caller.user.empty()) return ShareOf(of_peer, use_.*count, limit);
  const size_t of_user = own(users_, caller.user);
  return ShareOf(of_peer, of_user, ShareOf(of_user, use_.*count, limit));
}

absl::Status IncomingCalls::Check(const Caller& caller, Kind kind) const {
  static constexpr char kOne[] = " of one process, user or address";
  const auto used = [&](const auto& uses, const std::string& name, Count count) {
    const auto use = uses.find(name);
    return use == uses.end() ? size_t{0} : use->second.*count;
  };
  const auto check = [&](absl::string_view what, Count count, size_t limit, size_t reserved) {
    const size_t of_peer = used(peers_, caller.peer, count);
    const size_t cap = CapOf(caller, count, limit, reserved);
    return of_peer < cap ? absl::OkStatus() : TooMany(absl::StrCat(what, kOne), of_peer, cap);
  };
  const auto connection = connections_.find(caller.connection);
  const Use of_connection = connection == connections_.end() ? Use() : connection->second.use;
  if (of_connection.calls >= limits_.calls_of_connection_max) {
    return TooMany("calls of one connection", of_connection.calls, limits_.calls_of_connection_max);
  }
  KVTIER_RETURN_IF_ERROR(check("calls", &Use::calls, limits_.calls_max, limits_.calls_reserved));
  const auto check_watches = [&](absl::string_view what, Count count, size_t limit) {
    const size_t of_peer = used(peers_, caller.peer, count);
    return of_peer < limit ? absl::OkStatus() : TooMany(absl::StrCat(what, kOne), of_peer, limit);
  };
  if (kind == Kind::kWatch) {
    return check_watches("calls of Watch", &Use::watches, limits_.watches_of_peer_max);
  }
  if (kind == Kind::kStatsWatch) {
    return check_watches("calls of WatchStats", &Use::stats_watches,
                         limits_.stats_watches_of_peer_max);
  }
  if (kind != Kind::kStream) return absl::OkStatus();
  if (of_connection.streams >= limits_.streams_of_connection_max) {
    return TooMany("calls of RunSteps of one connection", of_connection.streams,
                   limits_.streams_of_connection_max);
  }
  return check("calls of RunSteps", &Use::streams, limits_.streams_max, /*reserved=*/0);
}

void IncomingCalls::Change(const Caller& caller, const std::function<void(Use&)>& change) {
  change(use_);
  change(connections_[caller.connection].use);
  change(peers_[caller.peer]);
  if (!caller.user.empty()) change(users_[caller.user]);
}

absl::StatusOr<std::shared_ptr<IncomingCalls::Place>> IncomingCalls::Begin(const Caller& caller,
                                                                           Kind kind) {
  MutexLock lock(&mutex_);
  KVTIER_RETURN_IF_ERROR(Check(caller, kind));
  Change(caller, [kind](Use& use) {
    ++use.calls;
    if (kind == Kind::kStream) ++use.streams;
    if (kind == Kind::kWatch) ++use.watches;
    if (kind == Kind::kStatsWatch) ++use.stats_watches;
  });
  return std::shared_ptr<Place>(new Place(shared_from_this(), caller, kind));
}

void IncomingCalls::End(const Place& place) {
  const Caller& caller = place.caller_;
  MutexLock lock(&mutex_);
  Change(caller, [&place](Use& use) {
    --use.calls;
    if (place.kind_ == Kind::kStream) --use.streams;
    if (place.kind_ == Kind::kWatch) --use.watches;
    if (place.kind_ == Kind::kStatsWatch) --use.stats_watches;
    use.kept_bytes -= place.kept_bytes_;
  });
  if (connections_[caller.connection].use.calls == 0) connections_.erase(caller.connection);
  if (peers_[caller.peer].calls == 0) peers_.erase(caller.peer);
  if (!caller.user.empty() && users_[caller.user].calls == 0) users_.erase(caller.user);
}

absl::Status IncomingCalls::Keep(Place* place, size_t bytes) {
  const Caller& caller = place->caller_;
  MutexLock lock(&mutex_);
  const size_t used = peers_[caller.peer].kept_bytes;
  const size_t cap = CapOf(caller, &Use::kept_bytes, limits_.kept_bytes_max, /*reserved=*/0);
  if (bytes > cap - std::min(used, cap)) {
    return TooMany("bytes of requests of one process, user or address", used, cap);
  }
  place->kept_bytes_ = bytes;
  Change(caller, [bytes](Use& use) { use.kept_bytes += bytes; });
  return absl::OkStatus();
}

void IncomingCalls::Receive(std::shared_ptr<Place> place, std::function<void()> start,
                            std::function<void()> give_up) {
  Starts starts;
  {
    MutexLock lock(&mutex_);
    const std::string& name = place->caller_.connection;
    std::deque<Waiting>& waiting = connections_[name].waiting;
    if (waiting.empty()) turns_.push_back(name);
    waiting.push_back({std::move(place), std::move(start), std::move(give_up)});
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
    Change(place->caller_, [](Use& use) { --use.receiving; });
    starts = TakeTurns();
  }
  for (const auto& each : starts) each();
}

bool IncomingCalls::MayReceive(const Caller& caller) const {
  return connections_.at(caller.connection).use.receiving < limits_.receiving_of_connection_max &&
         peers_.at(caller.peer).receiving <
             CapOf(caller, &Use::receiving, limits_.receiving_max, limits_.receiving_reserved);
}

IncomingCalls::Starts IncomingCalls::TakeTurns() {
  Starts starts;
  // Once around after the last who could start.
  size_t left = turns_.size();
  while (left > 0 && use_.receiving < limits_.receiving_max) {
    --left;
    Connection& connection = connections_[turns_.front()];
    Waiting& next = connection.waiting.front();
    if (MayReceive(next.place->caller_)) {
      Change(next.place->caller_, [](Use& use) { ++use.receiving; });
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
