// One session on one cache: its hot memory, its device stream, its requests and tickets.
//
// Life: made empty, Open() allocates, the cache learns of it (Cache::Join), verbs enqueue work,
// Fence() refuses new work, the reaper drains the device stream and releases the memory.
//
// Locks. `enqueue_mutex_` orders one device stream: several enqueues of one verb must not be
// torn apart by another verb's. It is the one lock under which a driver is called (enqueueing
// does not wait for the device, but a broken driver may hang there), so whatever must never
// hang - snapshots, health, closing a session, other attachments - never takes it. Ranks: node <
// cache < enqueue < attachment (RequestTable) < ticket and other leaves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/hot_tier/hot_tier.h"
#include "server/session/device_use.h"
#include "server/session/inline_bytes.h"
#include "server/session/progress.h"
#include "server/session/request_table.h"
#include "server/session/segment_handles.h"
#include "server/session/stats_mirror.h"
#include "server/session/ticket_table.h"

namespace kvtier {

class Cache;
class Reaper;
class TokenTable;

class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  struct Options {
    std::string session_id, client_name;
    DeviceInfo device;
    int64_t operations_in_flight_max = 0;
    DeviceBackend* backend = nullptr;
    const Clock* clock = nullptr;
    Reaper* reaper = nullptr;
    HostPool* pool = nullptr;
    DeviceUse* device_use = nullptr;  // not used after construction
  };

  // Enqueues on the device stream; runs at once, under the enqueue lock; must not wait.
  using Work = std::function<absl::Status(DeviceStream*, const HotTier&)>;

  Attachment(Options options, std::shared_ptr<Cache> cache);
  // The reaper has released the device: only then may the last reference go anywhere, even in a
  // callback of a device stream.
  ~Attachment() = default;

  const std::string& session_id() const { return options_.session_id; }
  const std::string& client_name() const { return options_.client_name; }
  const DeviceInfo& device() const { return options_.device; }
  const std::shared_ptr<Cache>& cache() const { return cache_; }
  RequestTable& requests() { return requests_; }
  TicketTable& tickets() { return tickets_; }
  InlineBytes& inline_bytes() { return inline_bytes_; }
  int64_t device_bytes() const { return use_->bytes(); }
  // The memory as other processes map it, with new tokens. Errors: SESSION_CLOSED,
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<SegmentInfo>> IssueSegments(TokenTable* tokens) const;

  // Allocates the memory and makes it empty; waits for that. After an error the reaper still
  // has to drain and release. Once.
  absl::Status Open(absl::Time deadline);

  // As it looks, without a lock: is the device the host, and its stream without work?
  bool LooksIdle() const { return HostReadable() && use_->waiting() == 0; }
  // Enqueues `work` and a notification that runs `done` with its status. `context` lives until
  // the device is done with the work, also if this fails half-way. On failure `done` never
  // runs. With `is_short` the calling thread does the work, and runs `done`, if the device is the
  // host and its stream has nothing to do. Errors: SESSION_CLOSED, those of the work and the
  // device.
  absl::Status Enqueue(const Work& work, std::shared_ptr<void> context,
                       std::function<void(absl::Status)> done, bool is_short = false);
  // The same as an operation with a ticket, on all groups or on `group`. On a GPU it comes after
  // the number `after_worker` of the worker's stream, and the worker's stream may wait for its
  // ticket (SegmentKind::kProgress). Further errors: LIMIT_REACHED.
  absl::StatusOr<int64_t> EnqueueOperation(
      OperationKind kind, std::optional<int> group, std::optional<int32_t> after_worker,
      const Work& work, std::shared_ptr<void> context,
      std::function<void(const absl::Status&, int64_t ticket)> done);
  // Drops copies of `blocks` in all regions, and writes pending changes of the block table, on the
  // calling thread: how many copies there were. Nothing if it can't be done here, or if the session
  // is closed: then nothing has been.
  std::optional<int64_t> InvalidateHere(const std::vector<int32_t>& blocks);
  // Enqueues pending changes of the block table, which otherwise go with the next work.
  absl::Status FlushTable();
  // Runs `passed` once all work enqueued so far, and every pending change of the block table,
  // is done; certainly: what the device refuses is tried again. Never waits. At once, on the
  // calling thread, if all of it is done.
  void WhenPassed(std::function<void()> passed);

  // Counters of a group. Never waits: where the host cannot read the device's memory they are
  // those of the last look (StatsMirror), and the next look is on its way. While a cache lists
  // the attachment.
  Counts ReadCounts(int group);

  // Device memory of at least `bytes` for inline data, ordered by the device stream. Keep it in
  // the work's context. May call the driver. Errors: those of DeviceBackend::Allocate.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> Scratch(int64_t bytes);

  // ---- For the node and its reaper.

  // New verbs are refused. Takes no lock that a driver is called under.
  void Fence() { requests_.Close(); }
  // Nothing more is enqueued; `drained` runs when the device stream has run dry, or at once if
  // the device refuses to say when.
  void Drain(std::function<void()> drained);
  // How far the two streams are; null before Open. Whoever ends the attachment takes it first, and
  // releases it until Drain has answered: a device stream may wait for a worker that writes no
  // more.
  std::shared_ptr<Progress> progress() const { return progress_; }
  // Ends the device stream, waiting for it. All that waited for it has run after this.
  void EndStream();
  // Frees device memory. After Cache::Leave: nobody reads statistics any more.
  void ReleaseDevice();

 private:
  using Passed = std::vector<std::function<void()>>;
  // What the next notification that the device takes speaks for.
  struct Carried {
    Passed passed;                                 // waits for all work before
    std::vector<std::shared_ptr<void>> contexts;   // used by work before
    std::vector<BlockTableImage::Change> changes;  // of the block table, enqueued before
  };

  static constexpr size_t kContextsMax = 64;

  // All that was enqueued is known to be done.
  bool IdleLocked() const KVTIER_REQUIRES(enqueue_mutex_);
  // True: until EndHereLocked, what is enqueued is done when the call returns (DeviceStream).
  bool BeginHereLocked() KVTIER_REQUIRES(enqueue_mutex_);
  void EndHereLocked() KVTIER_REQUIRES(enqueue_mutex_);
  // The same as what WhenPassed waits for, if it takes no waiting.
  bool HasPassedLocked() KVTIER_REQUIRES(enqueue_mutex_);
  absl::Status CheckRoomLocked(bool is_of_one_group) const KVTIER_REQUIRES(enqueue_mutex_);
  absl::Status FlushTableLocked() KVTIER_REQUIRES(enqueue_mutex_);
  absl::Status NotifyLocked(std::function<void(absl::Status)> done) KVTIER_REQUIRES(enqueue_mutex_);
  absl::Status RunLocked(const Work& work, const std::shared_ptr<void>& context)
      KVTIER_REQUIRES(enqueue_mutex_);
  void OnNotified(const absl::Status& status, Carried& carried);
  // Enqueues what `waiting_` waits for; plans a retry if the device refuses.
  void PassLocked() KVTIER_REQUIRES(enqueue_mutex_);
  void RetryPass();
  bool HostReadable() const { return options_.device.kind == BackendKind::kCpu; }
  void RefreshMirror();

  const Options options_;
  const std::shared_ptr<Cache> cache_;
  const std::shared_ptr<StreamUse> use_;
  RequestTable requests_;
  TicketTable tickets_;
  InlineBytes inline_bytes_;
  // Set by Open, reset by ReleaseDevice, which comes after Cache::Leave: read under the enqueue
  // lock while the device stream is there, or while a cache lists the attachment.
  std::unique_ptr<HotTier> tier_;
  std::shared_ptr<Progress> progress_;  // likewise
  StatsMirror mirror_;
  std::atomic<bool> refreshing_{false};

  Mutex enqueue_mutex_;  // rank: enqueue; see above
  std::unique_ptr<DeviceStream> stream_ KVTIER_GUARDED_BY(enqueue_mutex_);
  // Nothing may be enqueued any more; with `passed_all_`, everything enqueued is done.
  bool draining_ KVTIER_GUARDED_BY(enqueue_mutex_) = false;
  bool passed_all_ KVTIER_GUARDED_BY(enqueue_mutex_) = true;
  // Something may have been enqueued that no notification speaks for yet.
  bool unnotified_ KVTIER_GUARDED_BY(enqueue_mutex_) = false;
  // What the device still has to pass without a notification that says so: it refused one.
  Passed waiting_ KVTIER_GUARDED_BY(enqueue_mutex_);
  // Of work that was enqueued in part, or whose notification was refused.
  std::vector<std::shared_ptr<void>> contexts_ KVTIER_GUARDED_BY(enqueue_mutex_);
  // Enqueued, and not known to be done.
  std::vector<BlockTableImage::Change> changes_ KVTIER_GUARDED_BY(enqueue_mutex_);
  bool retrying_ KVTIER_GUARDED_BY(enqueue_mutex_) = false;

  mutable Mutex memory_mutex_;  // rank: a leaf
  SegmentHandles handles_ KVTIER_GUARDED_BY(memory_mutex_);
  // The last one is in use; older, smaller ones may still be in work that was enqueued.
  std::vector<std::shared_ptr<DeviceMemory>> scratch_ KVTIER_GUARDED_BY(memory_mutex_);
  bool released_ KVTIER_GUARDED_BY(memory_mutex_) = false;
};

}  // namespace kvtier
