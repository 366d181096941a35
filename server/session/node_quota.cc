// What each user has of the node, and how much it may be: one tenant cannot take all from another.
//
// A session is its worker's user's; a cache, with its part of the pool, is the user's who made it,
// whoever joins it. Who has as much as may be is refused what would come on top, unless caches of
// the same user's that have no sessions can give way: nobody else's do.

#include <algorithm>
#include <map>

#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/node_impl.h"

namespace kvtier {
namespace {

// As for the pool's own room: what is on its way back, and stays there for longer, waits for a
// device that may never end.
constexpr absl::Duration kReturnWaitMax = absl::Seconds(1);

}  // namespace

std::map<int32_t, UserSnapshot> Node::Impl::UsersLocked() const {
  std::map<int32_t, UserSnapshot> users;
  const auto user = [&users](int32_t uid) -> UserSnapshot& {
    UserSnapshot& found = users[uid];
    found.uid = uid;
    return found;
  };
  for (const auto& [id, session] : sessions_) ++user(session.peer.uid).sessions;
  for (const auto& [name, slot] : caches_) {
    UserSnapshot& owner = user(slot->access.owner_uid);
    ++owner.caches;
    owner.pool_bytes += slot->pool_bytes;
  }
  // Their memory is nobody else's yet.
  for (const auto& slot : ending_) user(slot->access.owner_uid).pool_bytes += slot->pool_bytes;
  return users;
}

UserSnapshot Node::Impl::UserLocked(int32_t uid) const {
  std::map<int32_t, UserSnapshot> users = UsersLocked();
  return users[uid];
}

absl::Status Node::Impl::CheckUsersSessions(int32_t uid) const {
  const int32_t limit = limits_.user_quota.sessions_max;
  if (limit == 0) return absl::OkStatus();
  const int32_t used = UserLocked(uid).sessions;
  if (used < limit) return absl::OkStatus();
  return UserLimitReached("sessions", "sessions_per_uid_max", {uid, used, 1, limit});
}

absl::Status Node::Impl::CheckUsersCaches(int32_t uid) {
  const int32_t limit = limits_.user_quota.caches_max;
  if (limit == 0) return absl::OkStatus();
  const int32_t used = UserLocked(uid).caches;
  if (used < limit || (used == limit && DropOneLocked(uid))) return absl::OkStatus();
  return UserLimitReached("caches", "caches_per_uid_max", {uid, used, 1, limit});
}

absl::Status Node::Impl::CountPoolBytes(CacheSlot* slot, absl::Time deadline) {
  const int32_t uid = slot->access.owner_uid;
  const int64_t wanted = CacheMemory::PoolBytesOf(slot->layout, *pool_);
  const absl::Time give_up = std::min(deadline, clock_->Now() + kReturnWaitMax);
  MutexLock lock(&mutex_);
  while (true) {
    const int64_t limit = limits_.user_quota.pool_bytes_max;
    const int64_t used = UserLocked(uid).pool_bytes;
    if (limit == 0 || wanted <= limit - used) {
      slot->pool_bytes = wanted;
      return absl::OkStatus();
    }
    // On its way back, and what nobody uses.
    int64_t ending = 0, unused = 0;
    for (const auto& other : ending_) {
      if (other->access.owner_uid == uid) ending += other->pool_bytes;
    }
    for (const auto& [name, other] : caches_) {
      if (other->access.owner_uid == uid && MayEndLocked(*other)) unused += other->pool_bytes;
    }
    const bool is_enough = wanted <= limit - used + ending + unused;
    if (is_enough && wanted > limit - used + ending) DropOneLocked(uid);
    if (!is_enough || !WaitForChange(&changed_, &mutex_, *clock_, give_up)) {
      return UserLimitReached("bytes of the host pool", "pool_bytes_per_uid_max",
                              {uid, used, wanted, limit});
    }
  }
}

}  // namespace kvtier
