// Sessions: how they open, how they end, and how what they leave comes back.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/random.h"
#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/node_impl.h"

namespace kvtier {
namespace {

constexpr int kBootIdBytes = 8;
constexpr int kSessionRandomBytes = 16;
// A new tenant waits this long for the memory of one that is leaving.
constexpr absl::Duration kReapWaitMax = absl::Seconds(1);

}  // namespace

Node::Impl::Impl(NodeOptions options, const Clock* clock, DeviceBackend* backend, HostPool* pool)
    : options_(std::move(options)),
      clock_(clock),
      backend_(backend),
      pool_(pool),
      boot_id_(RandomHex(kBootIdBytes)),
      start_time_(clock->Now()),
      limits_{options_.sessions_max, options_.caches_max, options_.user_quota},
      reaper_(options_.reaper_threads) {}

Node::Impl::~Impl() {
  // Cannot fail: it waits for as long as it takes.
  CloseAllSessions("the daemon stops", absl::InfiniteFuture()).IgnoreError();
}

void Node::Impl::SetLimits(const NodeLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

NodeLimits Node::Impl::limits() const {
  MutexLock lock(&mutex_);
  return limits_;
}

absl::StatusOr<std::string> Node::Impl::OpenSession(absl::string_view client_name, Peer peer,
                                                    std::shared_ptr<SessionObserver> observer) {
  KVTIER_RETURN_IF_ERROR(reaper_.Start());
  const std::string id = absl::StrCat(boot_id_, ".", RandomHex(kSessionRandomBytes));
  const absl::Time now = clock_->Now();
  auto queue = std::make_shared<ObserverQueue>(std::move(observer));
  MutexLock lock(&mutex_);
  // Under the lock, so that Drain tells every session that opened before it.
  if (draining_) return Draining();
  if (static_cast<int32_t>(sessions_.size()) >= limits_.sessions_max) {
    return LimitReached("sessions", limits_.sessions_max, kFullRetryDelay);
  }
  KVTIER_RETURN_IF_ERROR(CheckUsersSessions(peer.uid));
  tokens_.AddSession(id, peer.uid);
  NodeSession& session = sessions_[id];
  session.client_name = std::string(client_name);
  session.peer = std::move(peer);
  session.opened_time = now;
  session.number = ++last_session_number_;
  session.observer = std::move(queue);
  return id;
}

void Node::Impl::CloseSession(absl::string_view session_id) { EndSession(session_id, nullptr); }

absl::Status Node::Impl::EvictSession(absl::string_view session_id, absl::string_view message) {
  const std::string text(message);
  if (EndSession(session_id, &text)) return absl::OkStatus();
  MutexLock lock(&mutex_);
  return FindLocked(session_id).status();
}

void Node::Impl::Drain(absl::string_view message) {
  std::vector<std::shared_ptr<ObserverQueue>> observers;
  {
    MutexLock lock(&mutex_);
    if (draining_.exchange(true)) return;
    for (const auto& [id, session] : sessions_) observers.push_back(session.observer);
  }
  for (const std::shared_ptr<ObserverQueue>& observer : observers) observer->PostDraining(message);
}

absl::Status Node::Impl::CloseAllSessions(absl::string_view message, absl::Time deadline) {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) ids.push_back(id);
    stopping_ = true;
    std::vector<std::shared_ptr<CacheSlot>> unused;
    for (const auto& [name, slot] : caches_) {
      if (slot->cache == nullptr) continue;
      slot->cache->Preserve();
      if (slot->users == 0) unused.push_back(slot);
    }
    for (const std::shared_ptr<CacheSlot>& slot : unused) DropLocked(slot);
  }
  const std::string text(message);
  for (const std::string& id : ids) EndSession(id, &text);
  MutexLock lock(&mutex_);
  while (!caches_.empty() || !ending_.empty() || reaping_ > 0) {
    if (!WaitForChange(&changed_, &mutex_, *clock_, deadline)) {
      return DeadlinePassed(
          "sessions are closed, but a device stream has not run dry; its memory comes back later");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Node::Impl::RedeemToken(absl::string_view token, const Peer& peer) {
  return tokens_.Redeem(token, peer.uid);
}

absl::Status Node::Impl::CheckCaller(absl::string_view session_id, const Peer& peer) const {
  MutexLock lock(&mutex_);
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end() || session->second.peer.uid == peer.uid) return absl::OkStatus();
  return AccessDenied("the session belongs to another user; open one of your own", "owner",
                      {{"session_id", std::string(session_id)}, {"uid", absl::StrCat(peer.uid)}});
}

absl::StatusOr<std::shared_ptr<Attachment>> Node::Impl::Find(absl::string_view session_id,
                                                             absl::string_view cache) const {
  MutexLock lock(&mutex_);
  KVTIER_ASSIGN_OR_RETURN(const NodeSession* session, FindLocked(session_id));
  const auto slot = session->attachments.find(cache);
  if (slot == session->attachments.end() || slot->second.attachment == nullptr) {
    return CacheUnknown(cache);
  }
  return slot->second.attachment;
}

absl::Status Node::Impl::CheckDeadline(absl::Time deadline) const {
  return clock_->Now() < deadline ? absl::OkStatus() : DeadlinePassed("nothing was done");
}

absl::StatusOr<const NodeSession*> Node::Impl::FindLocked(absl::string_view session_id) const {
  const auto found = sessions_.find(session_id);
  if (found != sessions_.end()) return &found->second;
  const size_t dot = session_id.find('.');
  if (dot != absl::string_view::npos && session_id.substr(0, dot) != boot_id_) {
    return BootIdStale(session_id.substr(0, dot), boot_id_);
  }
  return SessionUnknown(session_id);
}

bool Node::Impl::EndSession(absl::string_view session_id, const std::string* revoked_message) {
  std::shared_ptr<ObserverQueue> observer;
  std::vector<Leaving> leaving;
  {
    MutexLock lock(&mutex_);
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return false;
    observer = found->second.observer;
    for (auto& [cache, slot] : found->second.attachments) {
      // A place without an attachment is given up by the call that is making it.
      if (slot.attachment == nullptr) continue;
      LeaveLocked(slot.cache_slot, /*reaped=*/true);
      leaving.push_back({std::move(slot.attachment), std::move(slot.cache_slot)});
    }
    sessions_.erase(found);
    changed_.NotifyAll();
  }
  tokens_.RemoveSession(session_id);
  for (Leaving& each : leaving) Reap(std::move(each.attachment), std::move(each.slot), nullptr);
  if (revoked_message != nullptr) {
    observer->PostRevoked(*revoked_message);
  } else {
    observer->Silence();
  }
  return true;
}

bool Node::Impl::LeaveLocked(const std::shared_ptr<CacheSlot>& slot, bool reaped) {
  --slot->users;
  if (reaped) {
    ++slot->reaping;
    ++reaping_;
  }
  changed_.NotifyAll();
  if (slot->users > 0) return false;
  if (slot->cache != nullptr) {
    const absl::Time now = clock_->Now();
    slot->expires = std::max(slot->reattach_until, now + slot->retention.duration);
    if (!stopping_ && (slot->expires > now || !MayEndLocked(*slot))) return false;
  }
  EndLocked(slot);
  return true;
}

void Node::Impl::Reap(std::shared_ptr<Attachment> attachment, std::shared_ptr<CacheSlot> slot,
                      std::function<void(absl::Status)> done) {
  attachment->Fence();
  // At once, and again and again: a worker that still lives may write earlier numbers.
  std::shared_ptr<Progress> progress = attachment->progress();
  const auto drained = std::make_shared<std::atomic<bool>>(false);
  const bool expected = progress != nullptr && progress->expects();
  if (expected) KeepReleasing(progress, drained);
  auto finish = [this, attachment, slot = std::move(slot), done = std::move(done)] {
    FinishReap(attachment.get(), slot);
    if (done) done(absl::OkStatus());
  };
  reaper_.Post([this, attachment, progress = std::move(progress), expected, drained,
                finish = std::move(finish)]() mutable {
    // Once the device stream has run dry and nobody here has the progress's memory any more.
    const auto left = std::make_shared<std::atomic<int>>(2);
    const auto end_part = [this, left, finish = std::move(finish)] {
      if (left->fetch_sub(1) == 1) reaper_.Post(finish);
    };
    attachment->Drain([drained, end_part] {
      *drained = true;
      end_part();
    });
    // A verb that was enqueueing when the fence came may have been the first to wait for the
    // worker. There will be no other one now.
    const bool expects = progress != nullptr && progress->expects();
    if (expects && !expected) KeepReleasing(progress, drained);
    progress.reset();
    end_part();
  });
}

void Node::Impl::KeepReleasing(const std::shared_ptr<Progress>& progress,
                               const std::shared_ptr<std::atomic<bool>>& drained) {
  progress->Release();
  reaper_.PostRetry([this, weak = std::weak_ptr<Progress>(progress), drained] {
    if (*drained) return;
    if (const auto found = weak.lock()) KeepReleasing(found, drained);
  });
}

void Node::Impl::FinishReap(Attachment* attachment, const std::shared_ptr<CacheSlot>& slot) {
  attachment->EndStream();
  bool keep = false;
  {
    MutexLock lock(&mutex_);
    keep = !slot->ended && slot->retention.duration > absl::ZeroDuration();
  }
  slot->cache->RemoveHolders(attachment->requests().Holders(), keep);
  slot->cache->Leave(attachment);
  attachment->ReleaseDevice();
  CountReaped(slot);
}

void Node::Impl::CountReaped(const std::shared_ptr<CacheSlot>& slot) {
  {
    MutexLock lock(&mutex_);
    --slot->reaping;
  }
  EndCacheIfDone(slot);
  MutexLock lock(&mutex_);
  --reaping_;
  ++reaped_;
  changed_.NotifyAll();
}

void Node::Impl::EndCacheIfDone(const std::shared_ptr<CacheSlot>& slot) {
  {
    MutexLock lock(&mutex_);
    if (!slot->ended || slot->reaping > 0 || slot->freeing) return;
    slot->freeing = true;
  }
  slot->cache->ReleaseMemory();
  const std::vector<Counts> groups = slot->cache->GroupCounts();
  MutexLock lock(&mutex_);
  for (const Counts& counts : groups) {
    ended_total_ += counts;
  }
  ending_.erase(std::find(ending_.begin(), ending_.end(), slot));
  changed_.NotifyAll();
}

bool Node::Impl::WaitForReaped(absl::Time deadline) {
  const absl::Time give_up = std::min(deadline, clock_->Now() + kReapWaitMax);
  MutexLock lock(&mutex_);
  const int64_t before = reaped_;
  while (reaping_ > 0 && reaped_ == before) {
    if (!WaitForChange(&changed_, &mutex_, *clock_, give_up)) return false;
  }
  return reaped_ != before;
}

}  // namespace kvtier
