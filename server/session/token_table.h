// One-time tokens that stand for file descriptors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/mutex.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// A token is 128 random bits, so it need not be compared in constant time: a guess that is
// nearly right teaches nothing about another one.
//
// A session whose peer's uid is not known (-1) is bound to the uid of the first peer that
// redeems one of its tokens. Thread-safe.
class TokenTable {
 public:
  // Unredeemed tokens of one session; the oldest die first. A cache has 6 segments, so this is
  // 42 attached caches, or one attached 42 times by a client that never redeems.
  static constexpr size_t kTokensPerSessionMax = 256;

  void AddSession(absl::string_view session_id, int32_t uid);
  // Its tokens are worth nothing from now on.
  void RemoveSession(absl::string_view session_id);
  // The same for the tokens of one cache.
  void RemoveCache(absl::string_view session_id, absl::string_view cache);

  // Errors: ABORTED / SESSION_CLOSED.
  absl::StatusOr<std::string> Issue(absl::string_view session_id, absl::string_view cache,
                                    UniqueFd fd);
  // A token that is refused because of `uid` stays good for the right peer.
  // Errors: NOT_FOUND / SESSION_UNKNOWN.
  absl::StatusOr<UniqueFd> Redeem(absl::string_view token, int32_t uid);

  int64_t token_count() const;

 private:
  struct Entry {
    std::string session_id, cache;
    UniqueFd fd;
  };
  struct SessionTokens {
    std::optional<int32_t> uid;
    std::deque<std::string> tokens;  // oldest first; some may be gone from entries_
  };

  mutable Mutex mutex_;                                                        // rank: a leaf
  absl::flat_hash_map<std::string, Entry> entries_ KVTIER_GUARDED_BY(mutex_);  // by token
  absl::flat_hash_map<std::string, SessionTokens> sessions_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
