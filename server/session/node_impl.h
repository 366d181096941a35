// What is inside a Node. Its parts: node_sessions.cc (sessions and their end), node_attach.cc,
// node_control.cc, node_data.cc, node_retain.cc (caches without sessions), node_quota.cc (what
// users have), snapshot.cc. One lock, `mutex_` (rank: node), guards who is there: sessions, caches,
// which session is attached where. It is held for look-ups only, never over an allocation or a
// device. A session or cache that is being made holds its place meanwhile, so that there is one
// maker at a time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "server/core/mutex.h"
#include "server/session/attachment.h"
#include "server/session/cache.h"
#include "server/session/node.h"
#include "server/session/node_state.h"
#include "server/session/observer_queue.h"
#include "server/session/reaper.h"
#include "server/session/token_table.h"
#include "server/session/wait.h"

namespace kvtier {

class Node::Impl {
 public:
  Impl(NodeOptions options, const Clock* clock, DeviceBackend* backend, HostPool* pool);
  ~Impl();

  const std::string& boot_id() const { return boot_id_; }
  bool draining() const { return draining_.load(std::memory_order_relaxed); }
  absl::Time start_time() const { return start_time_; }
  void SetLimits(const NodeLimits& limits);
  NodeLimits limits() const;
  absl::StatusOr<std::vector<std::string>> AdoptCaches();
  std::vector<std::string> EndExpiredCaches();
  bool earlier_workers() const { return earlier_workers_.load(std::memory_order_relaxed); }
  absl::StatusOr<std::string> OpenSession(absl::string_view client_name, Peer peer,
                                          std::shared_ptr<SessionObserver> observer);
  void CloseSession(absl::string_view session_id);
  absl::Status EvictSession(absl::string_view session_id, absl::string_view message);
  void Drain(absl::string_view message);
  absl::Status CloseAllSessions(absl::string_view message, absl::Time deadline);
  absl::StatusOr<UniqueFd> RedeemToken(absl::string_view token, const Peer& peer);
  absl::Status CheckCaller(absl::string_view session_id, const Peer& peer) const;

  absl::StatusOr<AttachResult> AttachCache(absl::string_view session_id, absl::string_view cache,
                                           const CacheLayout& layout, absl::string_view device_uuid,
                                           absl::Time deadline, const AttachOptions& options);
  absl::StatusOr<bool> DetachCache(absl::string_view session_id, absl::string_view cache,
                                   absl::Time deadline);

  absl::StatusOr<int32_t> AdmitRequest(Attachment& attachment, absl::string_view request_id,
                                       int32_t reserve_blocks, const Patience& patience);
  absl::StatusOr<int32_t> ReleaseRequest(Attachment& attachment, absl::string_view request_id,
                                         const Patience& patience);
  absl::StatusOr<AssignResult> AssignBlocks(Attachment& attachment, absl::string_view request_id,
                                            int32_t count,
                                            const std::vector<int32_t>& shared_blocks,
                                            const std::vector<int32_t>& shared_generations,
                                            const std::vector<int64_t>& tags,
                                            const Patience& patience);
  absl::StatusOr<int32_t> FreeBlocks(Attachment& attachment, absl::string_view request_id,
                                     const std::vector<int32_t>& blocks, const Patience& patience);
  absl::StatusOr<int64_t> InvalidateBlocks(Attachment& attachment,
                                           const std::vector<int32_t>& blocks,
                                           const Patience& patience);

  absl::StatusOr<int32_t> InlineRowPositions(const Attachment& attachment, int32_t group) const;
  absl::StatusOr<int64_t> SwapIn(Attachment& attachment, const SwapInCall& call,
                                 OperationDone done);
  absl::StatusOr<int64_t> ReplayPlan(Attachment& attachment, const ReplayPlanCall& call,
                                     OperationDone done);
  absl::StatusOr<int64_t> Backup(Attachment& attachment, const BackupCall& call,
                                 OperationDone done);
  absl::StatusOr<NodeSnapshot> Snapshot(absl::string_view cache) const;
  std::vector<SessionSnapshot> Sessions() const;
  absl::StatusOr<std::vector<RequestSnapshot>> Requests(absl::string_view cache) const;
  bool RunReaper() { return reaper_.RunOne(); }
  const DeviceUse& device_use() const { return device_use_; }
  const Clock& clock() const { return *clock_; }

  // Errors: SESSION_UNKNOWN, BOOT_ID_STALE, CACHE_UNKNOWN.
  absl::StatusOr<std::shared_ptr<Attachment>> Find(absl::string_view session_id,
                                                   absl::string_view cache) const;
  // DEADLINE if `deadline` has passed: nothing was done.
  absl::Status CheckDeadline(absl::Time deadline) const;

 private:
  // node_sessions.cc
  absl::StatusOr<const NodeSession*> FindLocked(absl::string_view session_id) const
      KVTIER_REQUIRES(mutex_);
  bool EndSession(absl::string_view session_id, const std::string* revoked_message);
  // One user of `slot` less; `reaped` if it left memory behind. True if the cache ended with it.
  bool LeaveLocked(const std::shared_ptr<CacheSlot>& slot, bool reaped) KVTIER_REQUIRES(mutex_);
  // Fences the attachment, and frees it on the reaper's threads.
  void Reap(std::shared_ptr<Attachment> attachment, std::shared_ptr<CacheSlot> slot,
            std::function<void(absl::Status)> done);
  void KeepReleasing(const std::shared_ptr<Progress>& progress,
                     const std::shared_ptr<std::atomic<bool>>& drained);
  void FinishReap(Attachment* attachment, const std::shared_ptr<CacheSlot>& slot);
  void CountReaped(const std::shared_ptr<CacheSlot>& slot);
  void EndCacheIfDone(const std::shared_ptr<CacheSlot>& slot);
  // Waits, a second at most, until something that is being reaped has come back. False: it has not.
  bool WaitForReaped(absl::Time deadline);

  // node_retain.cc
  // May the cache, which has no sessions, end now?
  bool MayEndLocked(const CacheSlot& slot) const KVTIER_REQUIRES(mutex_);
  // Takes it off the list; who called frees its memory, or (Drop) the reaper does.
  void EndLocked(const std::shared_ptr<CacheSlot>& slot) KVTIER_REQUIRES(mutex_);
  void DropLocked(const std::shared_ptr<CacheSlot>& slot) KVTIER_REQUIRES(mutex_);
  // Drops the one whose time would be over first, of those of `owner_uid` if there is one; For: if
  // all of them are enough for `bytes`.
  bool DropOneLocked(std::optional<int32_t> owner_uid = std::nullopt) KVTIER_REQUIRES(mutex_);
  bool DropOneFor(int64_t bytes);

  // node_quota.cc
  std::map<int32_t, UserSnapshot> UsersLocked() const KVTIER_REQUIRES(mutex_);
  UserSnapshot UserLocked(int32_t uid) const KVTIER_REQUIRES(mutex_);
  // May a user have one more? Errors: LIMIT_REACHED.
  absl::Status CheckUsersSessions(int32_t uid) const KVTIER_REQUIRES(mutex_);
  // The same; one of the user's own that nobody uses gives way.
  absl::Status CheckUsersCaches(int32_t uid) KVTIER_REQUIRES(mutex_);
  // Counts a cache's memory as its owner's, before the pool is asked for it; as MakeCache, waits
  // for what is on its way back, and has caches of the owner's give way. Errors: LIMIT_REACHED.
  absl::Status CountPoolBytes(CacheSlot* slot, absl::Time deadline);

  // node_attach.cc
  absl::StatusOr<DeviceInfo> ResolveDevice(absl::string_view device_uuid) const;
  absl::StatusOr<Place> TakePlace(absl::string_view session_id, absl::string_view cache,
                                  const CacheLayout& layout, const std::string& device_uuid,
                                  absl::Time deadline, const AttachOptions& options);
  absl::StatusOr<std::shared_ptr<CacheSlot>> JoinOrMakeSlot(absl::string_view cache,
                                                            const CacheLayout& layout,
                                                            const Peer& peer,
                                                            const AttachOptions& options,
                                                            bool* creator) KVTIER_REQUIRES(mutex_);
  absl::Status MakeCache(absl::string_view session_id, CacheSlot* slot, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<Attachment>> MakeAttachment(absl::string_view session_id,
                                                             const std::shared_ptr<CacheSlot>& slot,
                                                             const DeviceInfo& device,
                                                             absl::Time deadline);
  absl::StatusOr<AttachResult> Attach(absl::string_view session_id, const Place& place,
                                      const DeviceInfo& device, absl::Time deadline,
                                      const std::optional<Retention>& retain);
  void GiveUpPlace(absl::string_view session_id, const std::shared_ptr<CacheSlot>& slot,
                   std::shared_ptr<Attachment> attachment, absl::Time deadline);

  const NodeOptions options_;
  const Clock* const clock_;
  DeviceBackend* const backend_;
  HostPool* const pool_;
  const std::string boot_id_;
  const absl::Time start_time_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> earlier_workers_{false};
  TokenTable tokens_;
  DeviceUse device_use_;

  mutable Mutex mutex_;  // rank: node
  CondVar changed_;      // places, caches that end
  NodeLimits limits_ KVTIER_GUARDED_BY(mutex_);
  absl::btree_map<std::string, NodeSession> sessions_ KVTIER_GUARDED_BY(mutex_);  // by id
  absl::btree_map<std::string, std::shared_ptr<CacheSlot>> caches_ KVTIER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<CacheSlot>> ending_ KVTIER_GUARDED_BY(mutex_);  // not freed yet
  Counts ended_total_ KVTIER_GUARDED_BY(mutex_);     // of caches that are gone
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;  // no cache outlives its sessions any more
  int64_t last_session_number_ KVTIER_GUARDED_BY(mutex_) = 0;
  int reaping_ KVTIER_GUARDED_BY(mutex_) = 0;
  int64_t reaped_ KVTIER_GUARDED_BY(mutex_) = 0;

  Reaper reaper_;  // last: its threads use all of the above
};

}  // namespace kvtier
