// The part of a cache that its sessions share: rows, generations, blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/counters.h"
#include "server/core/cache_layout.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/host_pool/block_ledger.h"
#include "server/host_pool/cache_file.h"
#include "server/host_pool/host_pool.h"
#include "server/hot_tier/hot_tier.h"
#include "server/session/cache_memory.h"
#include "server/session/latency.h"
#include "server/session/patience.h"
#include "server/session/retention.h"
#include "server/session/types.h"

namespace kvtier {

class Attachment;

// Of all groups: what an invalidation looks at.
int64_t OwnersOfARegion(const CacheLayout& layout);

// Thread-safe. Calls that free blocks put them in quarantine until every attachment's device
// stream has passed what was enqueued before.
class Cache : public std::enable_shared_from_this<Cache> {
 public:
  // `layout` is valid; `may_go_on` as in HostPool::Carve. Errors: those of CacheMemory::Create;
  // nothing stays taken.
  static absl::StatusOr<std::shared_ptr<Cache>> Create(
      absl::string_view name, const CacheAccess& access, const CacheLayout& layout, HostPool* pool,
      DeviceBackend* backend, const Clock* clock, const std::function<absl::Status()>& may_go_on);
  // What an earlier daemon left: its blocks are kept. Errors: those of CacheMemory::Adopt.
  static absl::StatusOr<std::shared_ptr<Cache>> Adopt(CacheFile file, HostPool* pool,
                                                      DeviceBackend* backend, const Clock* clock);

  const std::string& name() const { return name_; }
  const CacheLayout& layout() const { return layout_; }
  HostView host() const { return memory_.host(); }
  // What all sessions share; good until ReleaseMemory.
  const CacheMemory& memory() const { return memory_; }
  int64_t host_bytes() const { return host_bytes_; }
  // A worker is about to get its memory. One that ends before it is known to be zeros.
  void HandOut() { handed_out_.store(true, std::memory_order_relaxed); }

  // ---- Blocks; errors as BlockLedger, and SESSION_CLOSED when the cache has ended. A holder is
  // a request of an attachment.

  int64_t NewHolder();
  // Both wait for quarantined blocks, up to a second, if those would be enough. Errors: DEADLINE.
  absl::Status AddHolder(int64_t holder, int32_t reserve_blocks, const Patience& patience);
  absl::StatusOr<BlockLedger::Assignment> Assign(int64_t holder, int32_t count,
                                                 const std::vector<int32_t>& shared,
                                                 const std::vector<int32_t>& shared_generations,
                                                 const std::vector<int64_t>& tags,
                                                 const Patience& patience);
  void UndoAssign(int64_t holder, const BlockLedger::Assignment& assignment);
  absl::Status CheckFree(int64_t holder, const std::vector<int32_t>& blocks) const;
  // Blocks that nobody holds any more.
  absl::StatusOr<int32_t> Free(int64_t holder, const std::vector<int32_t>& blocks);
  // With `keep` their blocks are kept.
  int32_t RemoveHolders(const std::vector<int64_t>& holders, bool keep = false);
  absl::Status CheckAssigned(const std::vector<int32_t>& blocks) const;
  int32_t ReservedFor(int64_t holder) const;
  int32_t BlocksOf(int64_t holder) const;

  // ---- What stays when sessions end.

  // A later daemon finds it, too. Blocks that are kept beyond its limit are free.
  void SetRetention(const Retention& retention);
  // As BlockLedger::SetKeptProtected.
  void SetKeptProtected(bool is_protected);
  // By block id from `first` on. Reads host memory of each block.
  absl::StatusOr<std::vector<KeptBlockInfo>> ListKept(int32_t first, int32_t count_max) const;
  int32_t kept_count() const;
  // What is held now is what a later daemon keeps, whatever happens to this cache. Nothing without
  // a pool folder.
  void Preserve();
  // A later daemon does not find it any more, whenever this one is killed: unless it is preserved.
  void Forget();

  // ---- Attachments.

  // From now on `attachment` hears of invalidations and is counted.
  //
  // An assignment that runs at the same time either sees it here, or has raised its generations
  // before: then no row of the blocks' earlier tenants counts as backed, and the regions of the
  // newcomer, empty so far, cannot come to hold one. So it need not be told.
  void Join(std::shared_ptr<Attachment> attachment);
  // Adds the attachment's counters to those of ended ones, in one step with its leaving.
  void Leave(const Attachment* attachment);
  using AttachmentList = std::vector<std::shared_ptr<Attachment>>;
  std::shared_ptr<const AttachmentList> Attachments() const;
  // As it looks: would a call that changes `block_count` blocks end without waiting, and soon? It
  // would where the calling thread can do all that is left to do for every attachment.
  bool LooksIdle(int64_t block_count) const;

  // An operation of an attachment is done; from enqueueing on.
  void CountLatency(OperationKind kind, absl::Duration duration) {
    latencies_[static_cast<int32_t>(kind)].Add(duration);
  }

  // Counters by group: ended attachments and present ones, at one moment of the list.
  std::vector<Counts> GroupCounts() const;
  // Everything but `layout`. False if the cache has ended: then there are counters alone.
  bool FillSnapshot(CacheSnapshot* snapshot) const;

  // Frees the memory; for the reaper, when no attachment is left. Block calls fail from now on.
  void ReleaseMemory();

 private:
  Cache(absl::string_view name, const CacheLayout& layout, const Clock* clock);
  void Start(CacheMemory memory, bool adopt);

  absl::Status CheckAlive() const KVTIER_REQUIRES(mutex_);
  // Retries `take` while quarantined blocks could help a request for `count`.
  absl::Status TakeBlocks(int64_t holder, int32_t count, const Patience& patience,
                          const std::function<absl::Status(BlockLedger&)>& take);
  void ReleaseWhenPassed(std::vector<int64_t> quarantines);
  void ReleaseQuarantines(const std::vector<int64_t>& quarantines);
  std::vector<Counts> GroupCountsLocked() const KVTIER_REQUIRES(mutex_);

  const std::string name_;
  const CacheLayout layout_;
  const Clock* const clock_;

  // Set by Create, freed by ReleaseMemory; in between read without a lock.
  CacheMemory memory_;
  int64_t host_bytes_ = 0;
  std::atomic<bool> handed_out_{false};

  std::array<LatencyHistogram, kOperationKindCount> latencies_;

  mutable Mutex mutex_;  // rank: cache
  CondVar quarantine_changed_;
  int64_t last_holder_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<BlockLedger> ledger_ KVTIER_GUARDED_BY(mutex_);  // null: ended
  bool preserved_ KVTIER_GUARDED_BY(mutex_) = false;
  // Never changed, but replaced: each call about blocks looks at all of it.
  std::shared_ptr<const AttachmentList> attachments_ KVTIER_GUARDED_BY(mutex_) =
      std::make_shared<const AttachmentList>();
  std::vector<Counts> ended_counts_ KVTIER_GUARDED_BY(mutex_);  // [group]
};

}  // namespace kvtier
