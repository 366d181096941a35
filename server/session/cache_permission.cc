#include "server/session/cache_permission.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/error.h"
#include "server/session/errors.h"

namespace kvtier {
namespace {

bool IsIn(const std::vector<int32_t>& ids, int32_t id) {
  return std::binary_search(ids.begin(), ids.end(), id);
}

}  // namespace

absl::Status CheckMayAttach(absl::string_view cache, const CacheAccess& access, const Peer& peer) {
  const Sharing& sharing = access.sharing;
  const auto shares = [&](int32_t gid) { return IsIn(sharing.gids, gid); };
  if (peer.uid == access.owner_uid || sharing.everybody || IsIn(sharing.uids, peer.uid) ||
      std::any_of(peer.gids.begin(), peer.gids.end(), shares)) {
    return absl::OkStatus();
  }
  return AccessDenied(
      absl::StrCat("cache '", cache, "' belongs to another user, who does not share it with user ",
                   peer.uid, "; take another name, or have it made with AttachCacheRequest.share"),
      "owner", {{"cache", std::string(cache)}, {"uid", absl::StrCat(peer.uid)}});
}

absl::Status CheckOwns(absl::string_view cache, const CacheAccess& access, const Peer& peer,
                       absl::string_view what) {
  if (peer.uid == access.owner_uid) return absl::OkStatus();
  return AccessDenied(absl::StrCat("cache '", cache, "' is shared with user ", peer.uid,
                                   ", but belongs to another: attach without ", what),
                      "owner", {{"cache", std::string(cache)}, {"uid", absl::StrCat(peer.uid)}});
}

std::string NameOf(const Sharing& sharing) {
  if (sharing.everybody) return "everybody";
  std::vector<std::string> parts;
  if (!sharing.uids.empty()) parts.push_back("users " + absl::StrJoin(sharing.uids, ","));
  if (!sharing.gids.empty()) parts.push_back("groups " + absl::StrJoin(sharing.gids, ","));
  return parts.empty() ? "nobody" : absl::StrJoin(parts, " and ");
}

absl::Status CheckSharing(const Sharing& sharing) {
  const size_t count = sharing.uids.size() + sharing.gids.size();
  if (count > kSharedWithMax) {
    return FieldInvalid("share", absl::StrCat(count, " users and groups"),
                        absl::StrCat("at most ", kSharedWithMax),
                        "share it with a group that all of them are in");
  }
  // Sorted: the first is the least.
  if (!sharing.uids.empty() && sharing.uids.front() < 0) {
    return FieldInvalid("share.uids", absl::StrCat(sharing.uids.front()), ">= 0");
  }
  if (!sharing.gids.empty() && sharing.gids.front() < 0) {
    return FieldInvalid("share.gids", absl::StrCat(sharing.gids.front()), ">= 0");
  }
  return absl::OkStatus();
}

}  // namespace kvtier
