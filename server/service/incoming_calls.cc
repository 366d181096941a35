#include "server/service/incoming_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

// Long enough for some of the calls to have ended.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

absl::Status TooMany(absl::string_view what, size_t used, size_t limit) {
  return MakeRetryableError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat(what, ": ", used, " are open, at most ", limit, "; wait for some to end"),
      kRetryDelay, {{"limit", absl::StrCat(limit)}, {"used", absl::StrCat(used)}});
}

// How much one who has `own` may have, of `limit` of which `all` are taken.
size_t ShareOf(size_t own, size_t all, size_t limit) {
  return std::max(own, limit - std::min(all, limit));
}

}  // namespace

IncomingCalls::Place::~Place() { calls_->End(*this); }

absl::StatusOr<std::shared_ptr<IncomingCalls::Place>> IncomingCalls::Begin(const Caller& caller,
                                                                           Kind kind) {
  const bool streams = kind == Kind::kStream;
  MutexLock lock(&mutex_);
  Connection& connection = connections_[caller.connection];
  Use& peer = peers_[caller.peer];
  // Entries of nobody go with the last place.
  const auto check = [&](absl::string_view what, size_t Use::*count, size_t of_connection_max,
                         size_t max) -> absl::Status {
    const size_t of_connection = connection.use.*count;
    if (of_connection >= of_connection_max) {
      return TooMany(absl::StrCat(what, " of one connection"), of_connection, of_connection_max);
    }
    const size_t share = ShareOf(peer.*count, use_.*count, max);
    if (peer.*count < share) return absl::OkStatus();
    return TooMany(absl::StrCat(what, " of one process, user or address"), peer.*count, share);
  };
  absl::Status status =
      check("calls", &Use::calls, limits_.calls_of_connection_max, limits_.calls_max);
  if (status.ok() && streams) {
    status = check("calls of RunSteps", &Use::streams, limits_.streams_of_connection_max,
                   limits_.streams_max);
  }
  if (!status.ok()) {
    if (connection.use.calls == 0) connections_.erase(caller.connection);
    if (peer.calls == 0) peers_.erase(caller.peer);
    return status;
  }
  for (Use* const use : {&use_, &peer, &connection.use}) {
    ++use->calls;
    if (streams) ++use->streams;
  }
  return std::shared_ptr<Place>(new Place(shared_from_this(), caller, kind));
}

void IncomingCalls::End(const Place& place) {
  MutexLock lock(&mutex_);
  const auto connection = connections_.find(place.caller_.connection);
  const auto peer = peers_.find(place.caller_.peer);
  for (Use* const use : {&use_, &peer->second, &connection->second.use}) {
    --use->calls;
    if (place.kind_ == Kind::kStream) --use->streams;
  }
  if (connection->second.use.calls == 0) connections_.erase(connection);
  if (peer->second.calls == 0) peers_.erase(peer);
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
    --use_.receiving;
    --peers_[place->caller_.peer].receiving;
    --connections_[place->caller_.connection].use.receiving;
    starts = TakeTurns();
  }
  for (const auto& each : starts) each();
}

bool IncomingCalls::MayReceive(const Caller& caller) {
  const size_t of_peer = peers_[caller.peer].receiving;
  return connections_[caller.connection].use.receiving < limits_.receiving_of_connection_max &&
         of_peer < ShareOf(of_peer, use_.receiving, limits_.receiving_max);
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
      for (Use* const use : {&use_, &peers_[next.place->caller_.peer], &connection.use}) {
        ++use->receiving;
      }
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
