// What operators see. No device is waited for, and no lock is taken that is held while one is.

#include <algorithm>
#include <optional>
#include <utility>

#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/node_impl.h"

namespace kvtier {

absl::StatusOr<NodeSnapshot> Node::Impl::Snapshot(absl::string_view cache) const {
  NodeSnapshot snapshot;
  snapshot.time = clock_->Now();
  snapshot.draining = draining_;
  struct Present {
    std::shared_ptr<Cache> cache;
    CacheAccess access;
    Retention retention;
    std::optional<absl::Time> expires_time;
  };
  std::vector<Present> present;
  std::vector<std::shared_ptr<Cache>> ending;
  {
    MutexLock lock(&mutex_);
    snapshot.sessions = static_cast<int32_t>(sessions_.size());
    snapshot.total = ended_total_;
    for (const auto& [uid, user] : UsersLocked()) snapshot.users.push_back(user);
    for (const auto& [name, slot] : caches_) {
      if (slot->cache == nullptr) continue;
      present.push_back(
          {.cache = slot->cache, .access = slot->access, .retention = slot->retention});
      if (slot->users == 0) present.back().expires_time = slot->expires;
    }
    for (const std::shared_ptr<CacheSlot>& slot : ending_) ending.push_back(slot->cache);
  }
  const auto add = [&snapshot](const std::vector<Counts>& groups) {
    for (const Counts& counts : groups) {
      snapshot.total += counts;
    }
  };
  for (const std::shared_ptr<Cache>& each : ending) add(each->GroupCounts());
  for (const Present& each : present) {
    CacheSnapshot one;
    one.layout = each.cache->layout();
    one.access = each.access;
    one.retention = each.retention;
    one.expires_time = each.expires_time;
    const bool listed = each.cache->FillSnapshot(&one);
    add(one.groups);
    if (!listed) continue;  // it has just ended; what it counted still counts
    if (cache.empty() || absl::string_view(each.cache->name()) == cache) {
      snapshot.caches.push_back(std::move(one));
    }
  }
  if (!cache.empty() && snapshot.caches.empty()) return CacheUnknown(cache);
  return snapshot;
}

std::vector<SessionSnapshot> Node::Impl::Sessions() const {
  std::vector<std::pair<int64_t, SessionSnapshot>> sessions;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) {
      SessionSnapshot one;
      one.session_id = id;
      one.client_name = session.client_name;
      one.peer = session.peer;
      one.opened_time = session.opened_time;
      for (const auto& [cache, slot] : session.attachments) {
        if (slot.attachment != nullptr) one.caches.push_back(cache);
      }
      sessions.emplace_back(session.number, std::move(one));
    }
  }
  std::sort(sessions.begin(), sessions.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<SessionSnapshot> oldest_first;
  for (auto& [number, session] : sessions) oldest_first.push_back(std::move(session));
  return oldest_first;
}

absl::StatusOr<std::vector<RequestSnapshot>> Node::Impl::Requests(absl::string_view cache) const {
  std::shared_ptr<Cache> found;
  {
    MutexLock lock(&mutex_);
    const auto slot = caches_.find(cache);
    if (slot == caches_.end() || slot->second->cache == nullptr) return CacheUnknown(cache);
    found = slot->second->cache;
  }
  Cache::AttachmentList attachments = *found->Attachments();
  std::sort(attachments.begin(), attachments.end(),
            [](const auto& a, const auto& b) { return a->session_id() < b->session_id(); });
  std::vector<RequestSnapshot> requests;
  for (const std::shared_ptr<Attachment>& attachment : attachments) {
    if (attachment->requests().closed()) continue;
    for (const RequestTable::Row& row : attachment->requests().Rows()) {
      requests.push_back({.session_id = attachment->session_id(),
                          .request_id = row.request.id,
                          .region = row.request.region,
                          .blocks = row.blocks,
                          .reserved_blocks = found->ReservedFor(row.request.holder)});
    }
  }
  return requests;
}

}  // namespace kvtier
