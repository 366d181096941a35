// Who may attach to which cache (docs/adr/0022-who-may-do-what.md).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/host_pool/cache_access.h"
#include "server/session/types.h"

namespace kvtier {

// OK, or ACCESS_DENIED. The refusal says that the name is taken, and neither whose the cache is nor
// what it is like.
absl::Status CheckMayAttach(absl::string_view cache, const CacheAccess& access, const Peer& peer);

// OK, or ACCESS_DENIED to `what`, an option that changes a cache for all who are attached to it.
// For who may attach.
absl::Status CheckOwns(absl::string_view cache, const CacheAccess& access, const Peer& peer,
                       absl::string_view what);

// "nobody", "everybody", "users 1000,1001 and groups 44".
std::string NameOf(const Sharing& sharing);

// FIELD_INVALID, or OK: numbers, and not too many.
absl::Status CheckSharing(const Sharing& sharing);

}  // namespace kvtier
