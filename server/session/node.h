// The daemon below gRPC: sessions, caches, requests, blocks, and work on device streams.
//
//   Node node({.version = "0.1.0"}, &clock, &backend, &pool);
//   auto session = node.OpenSession("worker-0", peer, observer);
//   auto attached = node.AttachCache(*session, "kv", layout, "", deadline);
//   auto region = node.AdmitRequest(*session, "kv", "r1", 0, deadline);
//   auto blocks = node.AssignBlocks(*session, "kv", "r1", 4, {}, {}, deadline);
//   auto ticket = node.SwapIn(*session, call, [](OperationOutcome outcome) { ... });
//
// Guarantees. Every verb either happens whole or not at all. A caller can never crash the
// node. Calls on a session that was closed fail with SESSION_UNKNOWN (or BOOT_ID_STALE for a
// session of an earlier daemon) from the moment CloseSession returns; its memory and blocks
// come back when its device stream has run dry. Snapshots take no lock that is held while a
// device is waited for.
//
// Verbs with a deadline may wait for device streams until then: run them on a thread that may
// wait. The others never wait. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/session/patience.h"
#include "server/session/retention.h"
#include "server/session/types.h"

namespace kvtier {

// What each user may have at a time, of caches what is the user's own; 0: as much as there is.
struct UserQuota {
  int32_t sessions_max = 0;
  int32_t caches_max = 0;
  int64_t pool_bytes_max = 0;
};

struct NodeOptions {
  std::string version;
  int32_t sessions_max = kSessionsMax;
  int32_t caches_max = kCachesMax;
  UserQuota user_quota;
  int32_t operations_in_flight_max = kOperationsInFlightMax;  // per session and cache
  absl::Duration reattach_duration = absl::Minutes(5);        // see AdoptCaches
  absl::Duration retain_duration_max = absl::Hours(1);        // what AttachOptions may ask for
  // 0: what closed sessions leave comes back only by RunReaper and in waits, for a simulation.
  int32_t reaper_threads = 3;
};

struct NodeLimits {
  int32_t sessions_max = 0;
  int32_t caches_max = 0;
  UserQuota user_quota;
};

class Node {
 public:
  // `clock`, `backend` and `pool` must outlive the node.
  Node(NodeOptions options, const Clock* clock, DeviceBackend* backend, HostPool* pool);
  // Closes every session and waits for their device streams.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& boot_id() const;
  absl::Time start_time() const;
  // As in NodeOptions, from now on; what is there already stays.
  void SetLimits(const NodeLimits& limits);
  NodeLimits limits() const;

  // ---- Caches that outlive their sessions.

  // Takes over the caches that an earlier daemon left in the pool's folder, if there is one; once,
  // before anything else. Without a session each stays for `reattach_duration`, or for as long as
  // it was to be retained. What cannot be used is dropped; returned are the reasons. Errors: the
  // machine or the device has no room for them now. Nothing was dropped for that, and this node
  // must not go on: it would write over what it did not take.
  absl::StatusOr<std::vector<std::string>> AdoptCaches();
  // Ends caches whose time without sessions is over, and notices when the last worker of an earlier
  // daemon is gone: until then the blocks that such workers may write are given to nobody, and
  // their caches do not end. To be called now and then. Never waits. Returns the names.
  std::vector<std::string> EndExpiredCaches();
  // Do processes of an earlier daemon's workers still map the pool? As of the last look.
  bool earlier_workers() const;

  // ---- Sessions. None of these waits.

  // Returns the session id: "<boot id>.<random>". `observer` may be null.
  // Errors: DRAINING, LIMIT_REACHED.
  absl::StatusOr<std::string> OpenSession(absl::string_view client_name, Peer peer,
                                          std::shared_ptr<SessionObserver> observer);
  // Fences at once, frees later. Unknown ids are ignored. The observer is not told.
  void CloseSession(absl::string_view session_id);
  // The same for an operator; the observer hears OnRevoked. Errors: SESSION_UNKNOWN.
  absl::Status EvictSession(absl::string_view session_id, absl::string_view message);
  // No new sessions, caches, requests or blocks; observers hear OnDraining. Idempotent.
  void Drain(absl::string_view message);
  // Takes no lock: for health.
  bool draining() const;
  // Evicts every session and waits until their memory is back, or the deadline. For good: caches
  // end with it, or wait in the pool's folder for the next daemon, with all that requests held.
  absl::Status CloseAllSessions(absl::string_view message, absl::Time deadline);

  // Gives the descriptor that `token` stands for, once, to a peer with the session's uid.
  // Errors: NOT_FOUND / SESSION_UNKNOWN for any other token or peer.
  absl::StatusOr<UniqueFd> RedeemToken(absl::string_view token, const Peer& peer);
  // Is it `peer`'s user that opened the session? Before each verb that somebody else asks for.
  // Errors: ACCESS_DENIED. Of a session that is not there the verb itself says so.
  absl::Status CheckCaller(absl::string_view session_id, const Peer& peer) const;

  // ---- Control verbs; errors as in proto/kvtier/v1/kvtier.proto.

  absl::StatusOr<AttachResult> AttachCache(absl::string_view session_id, absl::string_view cache,
                                           const CacheLayout& layout, absl::string_view device_uuid,
                                           absl::Time deadline, const AttachOptions& options = {});
  // Kept blocks by id from `first` on.
  absl::StatusOr<std::vector<KeptBlockInfo>> ListKeptBlocks(absl::string_view session_id,
                                                            absl::string_view cache, int32_t first,
                                                            int32_t count_max) const;
  // True if the cache ended with it.
  absl::StatusOr<bool> DetachCache(absl::string_view session_id, absl::string_view cache,
                                   absl::Time deadline);
  absl::StatusOr<int32_t> AdmitRequest(absl::string_view session_id, absl::string_view cache,
                                       absl::string_view request_id, int32_t reserve_blocks,
                                       const Patience& patience);
  // Blocks that nobody holds any more.
  absl::StatusOr<int32_t> ReleaseRequest(absl::string_view session_id, absl::string_view cache,
                                         absl::string_view request_id, const Patience& patience);
  // `shared_generations` is empty or as long as `shared_blocks`; `tags` is empty or `count` long.
  absl::StatusOr<AssignResult> AssignBlocks(absl::string_view session_id, absl::string_view cache,
                                            absl::string_view request_id, int32_t count,
                                            const std::vector<int32_t>& shared_blocks,
                                            const std::vector<int32_t>& shared_generations,
                                            const Patience& patience,
                                            const std::vector<int64_t>& tags = {});
  absl::StatusOr<int32_t> FreeBlocks(absl::string_view session_id, absl::string_view cache,
                                     absl::string_view request_id,
                                     const std::vector<int32_t>& blocks, const Patience& patience);
  // Hot rows dropped.
  absl::StatusOr<int64_t> InvalidateBlocks(absl::string_view session_id, absl::string_view cache,
                                           const std::vector<int32_t>& blocks,
                                           const Patience& patience);

  // ---- Data plane: enqueue and return a ticket. `done` may be null; it runs once if and only
  // if a ticket was returned. Tickets of one session and cache count from 1, in stream order.

  // Positions that one inline row of such a swap-in answers. Errors: as SwapIn would give.
  absl::StatusOr<int32_t> InlineRowPositions(absl::string_view session_id, absl::string_view cache,
                                             int32_t group) const;
  absl::StatusOr<int64_t> SwapIn(absl::string_view session_id, const SwapInCall& call,
                                 OperationDone done);
  absl::StatusOr<int64_t> ReplayPlan(absl::string_view session_id, const ReplayPlanCall& call,
                                     OperationDone done);
  absl::StatusOr<int64_t> Backup(absl::string_view session_id, const BackupCall& call,
                                 OperationDone done);
  // `done` runs when `ticket` is done (at once if it is), with its operation's status and the
  // newest completed ticket. Errors: TICKET_UNKNOWN, LIMIT_REACHED.
  absl::Status OnTicket(absl::string_view session_id, absl::string_view cache, int64_t ticket,
                        OperationDone done);

  // ---- What operators see. None of these waits for a device.

  // `cache` empty: all. Errors: CACHE_UNKNOWN.
  absl::StatusOr<NodeSnapshot> Snapshot(absl::string_view cache) const;
  std::vector<SessionSnapshot> Sessions() const;
  absl::StatusOr<std::vector<RequestSnapshot>> Requests(absl::string_view cache) const;
  // One job of what closed sessions leave, on the calling thread. False: there is none.
  bool RunReaper();
  // Hot-buffer, state and step bytes held on a device.
  int64_t DeviceBytesUsed(absl::string_view device_uuid) const;
  // Which device ends nothing of what it was given, for kDevicePatience and more. Empty: none.
  std::string DeviceStandsStill() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
