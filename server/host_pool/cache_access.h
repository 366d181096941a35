// Whose a cache is, and who else may attach to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvtier {

// Entries of both lists of a Sharing together: it travels with every attach.
inline constexpr size_t kSharedWithMax = 64;

// Who may attach beside the user that made the cache. Numbers as the daemon sees them.
struct Sharing {
  bool everybody = false;     // all who may open a session
  std::vector<int32_t> uids;  // each once, rising: so that equal ones compare equal
  std::vector<int32_t> gids;  // ditto

  bool operator==(const Sharing& other) const = default;
};

// Of one cache, from its making to its end.
struct CacheAccess {
  int32_t owner_uid = -1;  // -1: a peer of whom nobody knows who it is
  Sharing sharing;
};

// `ids` in the order that Sharing wants.
inline std::vector<int32_t> SortedOnce(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace kvtier
