#include "server/service/unread_answers.h"

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// A client that reads has taken something by then.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

absl::Status NoPlace(absl::string_view whose, int64_t used, int64_t limit) {
  return MakeRetryableError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat("answers of ", used, " bytes wait to be read ", whose, ", at most ", limit,
                   ": read them; steps can leave their results in the step buffers"),
      kRetryDelay, {{"limit", absl::StrCat(limit)}, {"used", absl::StrCat(used)}});
}

}  // namespace

UnreadAnswers::Place::~Place() { answers_->Release(*this); }

void UnreadAnswers::Place::SetReady() {
  MutexLock lock(&answers_->mutex_);
  if (ready_.has_value()) return;
  Connection& connection = answers_->connections_.find(reader_.connection)->second;
  ready_ = connection.ready.insert(connection.ready.end(), {answers_->clock_->Now(), bytes_});
}

absl::Status UnreadAnswers::Check(const Reader& reader, int64_t bytes) const {
  const auto connection = connections_.find(reader.connection);
  const int64_t of_connection = connection == connections_.end() ? 0 : connection->second.bytes;
  if (of_connection > 0 && of_connection + bytes > limits_.bytes_max) {
    return NoPlace("by this connection", of_connection, limits_.bytes_max);
  }
  const auto peer = peers_.find(reader.peer);
  const int64_t of_peer = peer == peers_.end() ? 0 : peer->second;
  if (of_peer > 0 && of_peer + bytes > limits_.bytes_of_peer_max) {
    return NoPlace("by this process", of_peer, limits_.bytes_of_peer_max);
  }
  // Who has nothing waiting is not to suffer from what others do not read.
  const int64_t limit = limits_.bytes_of_all_max + (of_peer > 0 ? 0 : limits_.bytes_reserved);
  if (bytes_ + bytes > limit) return NoPlace("on this node", bytes_, limit);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<UnreadAnswers::Place>> UnreadAnswers::Take(
    const Reader& reader, absl::string_view session_id, int64_t bytes) {
  MutexLock lock(&mutex_);
  if (bytes > 0) {
    KVTIER_RETURN_IF_ERROR(Check(reader, bytes));
    peers_[reader.peer] += bytes;
  }
  Connection& entry = connections_[reader.connection];
  ++entry.places;
  entry.bytes += bytes;
  entry.session_id = std::string(session_id);
  bytes_ += bytes;
  return std::shared_ptr<Place>(new Place(shared_from_this(), reader, bytes));
}

void UnreadAnswers::Release(const Place& place) {
  MutexLock lock(&mutex_);
  const auto found = connections_.find(place.reader_.connection);
  Connection& connection = found->second;
  connection.bytes -= place.bytes_;
  bytes_ -= place.bytes_;
  if (place.bytes_ > 0) {
    const auto peer = peers_.find(place.reader_.peer);
    peer->second -= place.bytes_;
    if (peer->second == 0) peers_.erase(peer);
  }
  if (place.ready_.has_value()) connection.ready.erase(*place.ready_);
  if (--connection.places == 0) connections_.erase(found);
}

std::vector<UnreadAnswers::Deaf> UnreadAnswers::FindDeaf() {
  std::vector<Deaf> deaf;
  MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  for (auto& [id, connection] : connections_) {
    if (connection.told) continue;
    int64_t bytes = 0;
    for (const Ready& ready : connection.ready) {
      if (now - ready.since < limits_.unread_max) break;
      bytes += ready.bytes;
    }
    if (bytes == 0 || bytes < limits_.deaf_bytes_min) continue;
    connection.told = true;
    deaf.push_back({id, connection.session_id, bytes});
  }
  return deaf;
}

int64_t UnreadAnswers::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace kvtier
