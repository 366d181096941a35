#include "server/session/token_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/core/error.h"
#include "server/core/random.h"
#include "server/session/errors.h"

namespace kvtier {
namespace {

constexpr int kTokenBytes = 16;

}  // namespace

void TokenTable::AddSession(absl::string_view session_id, int32_t uid) {
  MutexLock lock(&mutex_);
  SessionTokens& session = sessions_[std::string(session_id)];
  if (uid >= 0) session.uid = uid;
}

// Descriptors are closed without the lock: the last one of a large memory may take a while.
void TokenTable::RemoveSession(absl::string_view session_id) {
  std::vector<Entry> dead;
  MutexLock lock(&mutex_);
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return;
  for (const std::string& token : session->second.tokens) {
    const auto entry = entries_.find(token);
    if (entry == entries_.end()) continue;
    dead.push_back(std::move(entry->second));
    entries_.erase(entry);
  }
  sessions_.erase(session);
}

void TokenTable::RemoveCache(absl::string_view session_id, absl::string_view cache) {
  std::vector<Entry> dead;
  MutexLock lock(&mutex_);
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return;
  std::deque<std::string> kept;
  for (std::string& token : session->second.tokens) {
    const auto entry = entries_.find(token);
    if (entry == entries_.end()) continue;
    if (absl::string_view(entry->second.cache) == cache) {
      dead.push_back(std::move(entry->second));
      entries_.erase(entry);
    } else {
      kept.push_back(std::move(token));
    }
  }
  session->second.tokens = std::move(kept);
}

absl::StatusOr<std::string> TokenTable::Issue(absl::string_view session_id, absl::string_view cache,
                                              UniqueFd fd) {
  std::string token = RandomHex(kTokenBytes);
  Entry oldest;
  MutexLock lock(&mutex_);
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return SessionClosed(session_id);
  std::deque<std::string>& tokens = session->second.tokens;
  if (tokens.size() >= kTokensPerSessionMax) {
    const auto entry = entries_.find(tokens.front());
    if (entry != entries_.end()) {
      oldest = std::move(entry->second);
      entries_.erase(entry);
    }
    tokens.pop_front();
  }
  tokens.push_back(token);
  entries_[token] = {std::string(session_id), std::string(cache), std::move(fd)};
  return token;
}

absl::StatusOr<UniqueFd> TokenTable::Redeem(absl::string_view token, int32_t uid) {
  const auto refused = [] {
    return MakeError(absl::StatusCode::kNotFound, "SESSION_UNKNOWN",
                     "the token was used, is too old, ended with its session, or is another "
                     "user's");
  };
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(token);
  if (entry == entries_.end()) return refused();
  SessionTokens& session = sessions_.at(entry->second.session_id);
  if (session.uid.has_value() && *session.uid != uid) return refused();
  session.uid = uid;
  UniqueFd fd = std::move(entry->second.fd);
  const auto position =
      std::find(session.tokens.begin(), session.tokens.end(), absl::string_view(entry->first));
  if (position != session.tokens.end()) session.tokens.erase(position);
  entries_.erase(entry);
  return fd;
}

int64_t TokenTable::token_count() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace kvtier
