// Attaching sessions to caches, and leaving them.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"
#include "server/session/cache_permission.h"
#include "server/session/errors.h"
#include "server/session/node_impl.h"

namespace kvtier {
namespace {

// How long a failed attach waits for what it leaves, so that the next attempt finds it free.
constexpr absl::Duration kCleanUpWaitMax = absl::Seconds(1);

absl::Status CheckCacheName(absl::string_view cache) {
  const bool fits = !cache.empty() && cache.size() <= kNameBytesMax;
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("._/-").find(c) != absl::string_view::npos;
  };
  if (fits && std::all_of(cache.begin(), cache.end(), allowed)) return absl::OkStatus();
  return FieldInvalid("cache", absl::StrCat("'", absl::CHexEscape(cache.substr(0, 160)), "'"),
                      absl::StrCat("1..", kNameBytesMax, " bytes of [A-Za-z0-9._/-]"));
}

absl::Status IdConflict(absl::string_view cache, absl::string_view difference) {
  return MakeError(absl::StatusCode::kAlreadyExists, "ID_CONFLICT",
                   absl::StrCat("this session is attached to cache '", cache, "' already, with ",
                                difference, "; detach first"),
                   {{"cache", std::string(cache)}});
}

// OK, or LAYOUT_MISMATCH with the cache's name.
absl::Status CheckSameLayout(absl::string_view cache, const CacheLayout& existing,
                             const CacheLayout& layout) {
  const absl::Status same = CompareLayouts(existing, layout);
  if (same.ok()) return same;
  ErrorMetadata metadata = ErrorMetadataOf(same);
  metadata["cache"] = std::string(cache);
  return MakeError(same.code(), ErrorReasonOf(same), same.message(), metadata);
}

// OK, or LAYOUT_MISMATCH: sharing is settled when a cache is made.
absl::Status CheckSameSharing(absl::string_view cache, const Sharing& existing,
                              const std::optional<Sharing>& wanted) {
  if (!wanted.has_value() || *wanted == existing) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "LAYOUT_MISMATCH",
                   absl::StrCat("cache '", cache, "' is shared with ", NameOf(existing),
                                " since it was made, and not with ", NameOf(*wanted)),
                   {{"cache", std::string(cache)},
                    {"field", "share"},
                    {"value", NameOf(*wanted)},
                    {"expected", NameOf(existing)}});
}

bool IsExhausted(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  return reason == "POOL_EXHAUSTED" || reason == "DEVICE_MEMORY_EXHAUSTED";
}

}  // namespace

absl::StatusOr<AttachResult> Node::Impl::AttachCache(
    absl::string_view session_id, absl::string_view cache, const CacheLayout& layout,
    absl::string_view device_uuid, absl::Time deadline, const AttachOptions& options) {
  {
    MutexLock lock(&mutex_);
    KVTIER_RETURN_IF_ERROR(FindLocked(session_id).status());
  }
  KVTIER_RETURN_IF_ERROR(CheckDeadline(deadline));
  KVTIER_RETURN_IF_ERROR(CheckCacheName(cache));
  KVTIER_RETURN_IF_ERROR(ValidateLayout(layout));
  KVTIER_RETURN_IF_ERROR(CheckRetention(options, options_.retain_duration_max));
  if (options.share.has_value()) KVTIER_RETURN_IF_ERROR(CheckSharing(*options.share));
  KVTIER_ASSIGN_OR_RETURN(const DeviceInfo device, ResolveDevice(device_uuid));
  KVTIER_ASSIGN_OR_RETURN(const Place place,
                          TakePlace(session_id, cache, layout, device.uuid, deadline, options));
  return Attach(session_id, place, device, deadline, options.retain);
}

absl::StatusOr<bool> Node::Impl::DetachCache(absl::string_view session_id, absl::string_view cache,
                                             absl::Time deadline) {
  Leaving leaving;
  {
    MutexLock lock(&mutex_);
    KVTIER_RETURN_IF_ERROR(FindLocked(session_id).status());
    if (clock_->Now() >= deadline) return DeadlinePassed("nothing was done");
    NodeSession& session = sessions_.find(session_id)->second;
    const auto slot = session.attachments.find(cache);
    if (slot == session.attachments.end() || slot->second.attachment == nullptr) {
      return CacheUnknown(cache);
    }
    leaving = {std::move(slot->second.attachment), std::move(slot->second.cache_slot)};
    session.attachments.erase(slot);
    leaving.cache_ended = LeaveLocked(leaving.slot, /*reaped=*/true);
  }
  tokens_.RemoveCache(session_id, cache);
  const auto completions = std::make_shared<Completions>();
  Reap(std::move(leaving.attachment), std::move(leaving.slot), completions->Expect());
  // The session has left already: what a slow device still holds comes back without it.
  completions->Wait(*clock_, deadline).IgnoreError();
  return leaving.cache_ended;
}

absl::StatusOr<DeviceInfo> Node::Impl::ResolveDevice(absl::string_view device_uuid) const {
  const std::vector<DeviceInfo> devices = backend_->Devices();
  std::vector<std::string> known;
  for (const DeviceInfo& device : devices) {
    if (absl::string_view(device.uuid) == device_uuid) return device;
    known.push_back(device.uuid);
  }
  if (device_uuid.empty() && devices.size() == 1) return devices.front();
  const std::string list = absl::StrJoin(known, ", ");
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
                   devices.empty()
                       ? "this daemon has no device"
                       : absl::StrCat(device_uuid.empty() ? "say which device" : "no such device: ",
                                      device_uuid, "; this daemon has ", list),
                   {{"device_uuid", std::string(device_uuid)}, {"known", list}});
}

absl::StatusOr<Place> Node::Impl::TakePlace(absl::string_view session_id, absl::string_view cache,
                                            const CacheLayout& layout,
                                            const std::string& device_uuid, absl::Time deadline,
                                            const AttachOptions& options) {
  MutexLock lock(&mutex_);
  while (true) {
    KVTIER_RETURN_IF_ERROR(FindLocked(session_id).status());
    NodeSession& session = sessions_.find(session_id)->second;
    Place place;
    const auto own = session.attachments.find(cache);
    if (own != session.attachments.end()) {
      const absl::Status same = CompareLayouts(own->second.cache_slot->layout, layout);
      if (!same.ok()) return IdConflict(cache, same.message());
      if (own->second.device_uuid != device_uuid) {
        return IdConflict(cache, absl::StrCat("device ", own->second.device_uuid));
      }
      place.existing = own->second.attachment;
      if (place.existing != nullptr) return place;
    } else {
      if (draining_) return Draining();
      KVTIER_ASSIGN_OR_RETURN(place.slot,
                              JoinOrMakeSlot(cache, layout, session.peer, options, &place.creator));
      if (place.slot != nullptr) {
        ++place.slot->users;
        session.attachments[std::string(cache)] = {place.slot, device_uuid, nullptr};
        return place;
      }
    }
    // Another call makes the cache or this session's part of it: its end decides. Should it
    // fail, this one tries itself.
    if (!WaitForChange(&changed_, &mutex_, *clock_, deadline)) {
      return DeadlinePassed("another call that makes the cache was not done in time");
    }
  }
}

// Null: another call is making it.
absl::StatusOr<std::shared_ptr<CacheSlot>> Node::Impl::JoinOrMakeSlot(absl::string_view cache,
                                                                      const CacheLayout& layout,
                                                                      const Peer& peer,
                                                                      const AttachOptions& options,
                                                                      bool* creator) {
  if (const auto found = caches_.find(cache); found != caches_.end()) {
    const CacheSlot& slot = *found->second;
    // First: whoever may not attach learns nothing of it, and cannot have it dropped.
    KVTIER_RETURN_IF_ERROR(CheckMayAttach(cache, slot.access, peer));
    if (options.retain.has_value()) {
      KVTIER_RETURN_IF_ERROR(CheckOwns(cache, slot.access, peer, "retain"));
    }
    absl::Status same = CheckSameLayout(cache, slot.layout, layout);
    if (same.ok()) same = CheckSameSharing(cache, slot.access.sharing, options.share);
    if (same.ok()) return slot.cache == nullptr ? nullptr : found->second;
    if (!options.replace_kept) return same;
    KVTIER_RETURN_IF_ERROR(CheckOwns(cache, slot.access, peer, "replace_kept"));
    if (!MayEndLocked(slot)) return same;
    DropLocked(std::shared_ptr<CacheSlot>(found->second));
  }
  KVTIER_RETURN_IF_ERROR(CheckUsersCaches(peer.uid));
  if (static_cast<int32_t>(caches_.size()) >= limits_.caches_max && !DropOneLocked()) {
    return LimitReached("caches", limits_.caches_max, kFullRetryDelay);
  }
  const auto slot = std::make_shared<CacheSlot>();
  slot->name = std::string(cache);
  slot->layout = layout;
  slot->access = {.owner_uid = peer.uid, .sharing = options.share.value_or(Sharing())};
  caches_[slot->name] = slot;
  *creator = true;
  return slot;
}

absl::StatusOr<AttachResult> Node::Impl::Attach(absl::string_view session_id, const Place& place,
                                                const DeviceInfo& device, absl::Time deadline,
                                                const std::optional<Retention>& retain) {
  AttachResult result;
  result.created = place.creator;
  result.device = device;
  if (place.existing != nullptr) {
    result.layout = place.existing->cache()->layout();
    KVTIER_ASSIGN_OR_RETURN(result.segments, place.existing->IssueSegments(&tokens_));
    return result;
  }
  std::shared_ptr<Attachment> attachment;
  const absl::Status made = [&]() -> absl::Status {
    // One of an earlier daemon is there before its memory is pinned.
    KVTIER_RETURN_IF_ERROR(pool_->CheckReady());
    if (place.creator) KVTIER_RETURN_IF_ERROR(MakeCache(session_id, place.slot.get(), deadline));
    KVTIER_ASSIGN_OR_RETURN(attachment, MakeAttachment(session_id, place.slot, device, deadline));
    place.slot->cache->HandOut();
    KVTIER_ASSIGN_OR_RETURN(result.segments, attachment->IssueSegments(&tokens_));
    // The commit point.
    MutexLock lock(&mutex_);
    const auto session = sessions_.find(session_id);
    if (session == sessions_.end()) return SessionClosed(session_id);
    session->second.attachments.find(place.slot->name)->second.attachment = attachment;
    place.slot->cache->Join(attachment);
    if (retain.has_value()) {
      place.slot->retention = *retain;
      place.slot->cache->SetRetention(*retain);
    }
    changed_.NotifyAll();
    return absl::OkStatus();
  }();
  if (!made.ok()) {
    GiveUpPlace(session_id, place.slot, std::move(attachment), deadline);
    return made;
  }
  result.layout = place.slot->layout;
  result.blocks_kept = place.slot->cache->kept_count();
  return result;
}

absl::Status Node::Impl::MakeCache(absl::string_view session_id, CacheSlot* slot,
                                   absl::Time deadline) {
  KVTIER_RETURN_IF_ERROR(CountPoolBytes(slot, deadline));
  // Wiping what others left takes seconds where the cache is large.
  const auto may_go_on = [&]() -> absl::Status {
    if (clock_->Now() >= deadline) {
      return DeadlinePassed("what was wiped for the cache stays so: another call has less to do");
    }
    MutexLock lock(&mutex_);
    return sessions_.contains(session_id) ? absl::OkStatus() : SessionClosed(session_id);
  };
  while (true) {
    absl::StatusOr<std::shared_ptr<Cache>> cache =
        Cache::Create(slot->name, slot->access, slot->layout, pool_, backend_, clock_, may_go_on);
    if (cache.ok()) {
      MutexLock lock(&mutex_);
      slot->cache = *std::move(cache);
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    // First what is on its way back, then what nobody uses.
    if (!IsExhausted(cache.status())) return cache.status();
    if (!WaitForReaped(deadline) && !DropOneFor(HostGeometryOf(slot->layout).size_bytes)) {
      return cache.status();
    }
  }
}

absl::StatusOr<std::shared_ptr<Attachment>> Node::Impl::MakeAttachment(
    absl::string_view session_id, const std::shared_ptr<CacheSlot>& slot, const DeviceInfo& device,
    absl::Time deadline) {
  Attachment::Options options;
  options.session_id = std::string(session_id);
  options.device = device;
  options.operations_in_flight_max = options_.operations_in_flight_max;
  options.backend = backend_;
  options.pool = pool_;
  options.clock = clock_;
  options.reaper = &reaper_;
  options.device_use = &device_use_;
  {
    MutexLock lock(&mutex_);
    const auto session = sessions_.find(session_id);
    if (session == sessions_.end()) return SessionClosed(session_id);
    options.client_name = session->second.client_name;
  }
  while (true) {
    const auto attachment = std::make_shared<Attachment>(options, slot->cache);
    const absl::Status opened = attachment->Open(deadline);
    if (opened.ok()) return attachment;
    {
      MutexLock lock(&mutex_);
      ++slot->reaping;
      ++reaping_;
    }
    const auto completions = std::make_shared<Completions>();
    Reap(attachment, slot, completions->Expect());
    completions->Wait(*clock_, std::min(deadline, clock_->Now() + kCleanUpWaitMax)).IgnoreError();
    if (!IsExhausted(opened) || !WaitForReaped(deadline)) return opened;
  }
}

void Node::Impl::GiveUpPlace(absl::string_view session_id, const std::shared_ptr<CacheSlot>& slot,
                             std::shared_ptr<Attachment> attachment, absl::Time deadline) {
  tokens_.RemoveCache(session_id, slot->name);
  const bool reaped = attachment != nullptr;
  bool cache_ended = false;
  {
    MutexLock lock(&mutex_);
    const auto session = sessions_.find(session_id);
    if (session != sessions_.end()) session->second.attachments.erase(slot->name);
    cache_ended = LeaveLocked(slot, reaped) && slot->cache != nullptr;
  }
  const auto completions = std::make_shared<Completions>();
  if (reaped) {
    Reap(std::move(attachment), slot, completions->Expect());
  } else if (cache_ended) {
    reaper_.Post([this, slot, done = completions->Expect()] {
      EndCacheIfDone(slot);
      done(absl::OkStatus());
    });
  }
  completions->Wait(*clock_, std::min(deadline, clock_->Now() + kCleanUpWaitMax)).IgnoreError();
}

}  // namespace kvtier
