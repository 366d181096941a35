// Caches without sessions: how long they stay, and which goes first when room is wanted.

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/session/node_impl.h"

namespace kvtier {

absl::StatusOr<std::vector<std::string>> Node::Impl::AdoptCaches() {
  std::vector<std::string> dropped;
  PoolFolder* const folder = pool_->folder();
  if (folder == nullptr) return dropped;
  // They must be ended some day, whether or not a session ever opens.
  KVTIER_RETURN_IF_ERROR(reaper_.Start());
  earlier_workers_ = folder->EarlierRunsMapThePool();
  for (CacheFile& file : folder->TakeKept()) {
    const std::string name = file.manifest().cache;
    const Retention retention = file.retention();
    const CacheAccess access = file.manifest().access;
    absl::StatusOr<std::shared_ptr<Cache>> cache =
        Cache::Adopt(std::move(file), pool_, backend_, clock_);
    if (!cache.ok() && !absl::IsDataLoss(cache.status())) return cache.status();
    if (!cache.ok()) {
      dropped.push_back(absl::StrCat("cache ", name, ": ", cache.status().message()));
      continue;
    }
    (*cache)->SetKeptProtected(earlier_workers_);
    const auto slot = std::make_shared<CacheSlot>();
    slot->name = name;
    slot->layout = (*cache)->layout();
    slot->cache = *std::move(cache);
    slot->adopted = true;
    slot->access = access;
    slot->pool_bytes = slot->cache->memory().pool_bytes();
    slot->retention = retention;
    slot->reattach_until = clock_->Now() + options_.reattach_duration;
    slot->expires = std::max(slot->reattach_until, clock_->Now() + retention.duration);
    MutexLock lock(&mutex_);
    if (caches_.emplace(name, slot).second) continue;
    // Two files of one name: their maker never does that.
    dropped.push_back(absl::StrCat("cache ", name, ": there is another one of that name"));
    ending_.push_back(slot);
    slot->ended = true;
    reaper_.Post([this, slot] { EndCacheIfDone(slot); });
  }
  return dropped;
}

std::vector<std::string> Node::Impl::EndExpiredCaches() {
  std::vector<std::string> names;
  if (earlier_workers_ && !pool_->folder()->EarlierRunsMapThePool()) {
    earlier_workers_ = false;
    std::vector<std::shared_ptr<Cache>> caches;
    {
      MutexLock lock(&mutex_);
      for (const auto& [name, slot] : caches_) {
        if (slot->adopted) caches.push_back(slot->cache);
      }
    }
    for (const std::shared_ptr<Cache>& cache : caches) cache->SetKeptProtected(false);
  }
  MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  std::vector<std::shared_ptr<CacheSlot>> expired;
  for (const auto& [name, slot] : caches_) {
    if (MayEndLocked(*slot) && slot->expires <= now) expired.push_back(slot);
  }
  for (const std::shared_ptr<CacheSlot>& slot : expired) {
    names.push_back(slot->name);
    DropLocked(slot);
  }
  return names;
}

// A worker of an earlier daemon that still has the pool mapped may write the blocks that it held:
// they must be nobody else's.
bool Node::Impl::MayEndLocked(const CacheSlot& slot) const {
  if (slot.users > 0 || slot.cache == nullptr) return false;
  return stopping_ || !slot.adopted || !earlier_workers_;
}

void Node::Impl::EndLocked(const std::shared_ptr<CacheSlot>& slot) {
  slot->ended = true;
  caches_.erase(slot->name);
  if (slot->cache != nullptr) {
    // At once: its memory may come back late, and another of that name may have been made by then.
    slot->cache->Forget();
    ending_.push_back(slot);
  }
  changed_.NotifyAll();
}

void Node::Impl::DropLocked(const std::shared_ptr<CacheSlot>& slot) {
  EndLocked(slot);
  ++slot->reaping;
  ++reaping_;
  reaper_.Post([this, slot] { CountReaped(slot); });
}

bool Node::Impl::DropOneLocked(std::optional<int32_t> owner_uid) {
  std::shared_ptr<CacheSlot> first;
  for (const auto& [name, slot] : caches_) {
    if (!MayEndLocked(*slot)) continue;
    if (owner_uid.value_or(slot->access.owner_uid) != slot->access.owner_uid) continue;
    if (first == nullptr || slot->expires < first->expires) first = slot;
  }
  if (first == nullptr) return false;
  DropLocked(first);
  return true;
}

bool Node::Impl::DropOneFor(int64_t bytes) {
  const HostPool::Stats pool = pool_->stats();
  int64_t obtainable = pool.total_bytes - pool.used_bytes;
  MutexLock lock(&mutex_);
  for (const auto& [name, slot] : caches_) {
    if (MayEndLocked(*slot)) obtainable += slot->cache->host_bytes();
  }
  return bytes <= obtainable && DropOneLocked();
}

}  // namespace kvtier
