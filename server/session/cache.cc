#include "server/session/cache.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/session/attachment.h"
#include "server/session/errors.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

// Quarantined blocks come back within a step or so; nobody waits longer for them.
constexpr absl::Duration kQuarantineWaitMax = absl::Seconds(1);

// What a thread that others wait for may look at in one call: a tenth of a millisecond or so.
constexpr int64_t kBlocksAtOnceMax = 1024, kOwnersAtOnceMax = 1 << 19;

}  // namespace

int64_t OwnersOfARegion(const CacheLayout& layout) {
  int64_t owners = 0;
  for (const GroupLayout& group : layout.groups) owners += group.hot_size;
  return owners;
}

Cache::Cache(absl::string_view name, const CacheLayout& layout, const Clock* clock)
    : name_(name), layout_(layout), clock_(clock), ended_counts_(layout.groups.size()) {}

absl::StatusOr<std::shared_ptr<Cache>> Cache::Create(
    absl::string_view name, const CacheAccess& access, const CacheLayout& layout, HostPool* pool,
    DeviceBackend* backend, const Clock* clock, const std::function<absl::Status()>& may_go_on) {
  std::shared_ptr<Cache> cache(new Cache(name, layout, clock));
  KVTIER_ASSIGN_OR_RETURN(CacheMemory memory,
                          CacheMemory::Create(name, access, layout, pool, backend, may_go_on));
  cache->Start(std::move(memory), /*adopt=*/false);
  // Only now does a later daemon find it: with generations that mean something.
  if (absl::Status committed = cache->memory_.Commit(); !committed.ok()) {
    cache->ReleaseMemory();
    return committed;
  }
  return cache;
}

absl::StatusOr<std::shared_ptr<Cache>> Cache::Adopt(CacheFile file, HostPool* pool,
                                                    DeviceBackend* backend, const Clock* clock) {
  std::shared_ptr<Cache> cache(new Cache(file.manifest().cache, file.manifest().layout, clock));
  KVTIER_ASSIGN_OR_RETURN(CacheMemory memory, CacheMemory::Adopt(std::move(file), pool, backend));
  cache->Start(std::move(memory), /*adopt=*/true);
  cache->HandOut();  // by an earlier daemon
  return cache;
}

void Cache::Start(CacheMemory memory, bool adopt) {
  memory_ = std::move(memory);
  host_bytes_ = memory_.pool_bytes();
  MutexLock lock(&mutex_);
  ledger_ = std::make_unique<BlockLedger>(name_, layout_.block_count,
                                          NeighbourhoodBlocksOf(layout_), memory_.records(), adopt);
}

int64_t Cache::NewHolder() {
  MutexLock lock(&mutex_);
  return ++last_holder_;
}

absl::Status Cache::AddHolder(int64_t holder, int32_t reserve_blocks, const Patience& patience) {
  return TakeBlocks(holder, reserve_blocks, patience,
                    [&](BlockLedger& ledger) { return ledger.AddHolder(holder, reserve_blocks); });
}

absl::StatusOr<BlockLedger::Assignment> Cache::Assign(
    int64_t holder, int32_t count, const std::vector<int32_t>& shared,
    const std::vector<int32_t>& shared_generations, const std::vector<int64_t>& tags,
    const Patience& patience) {
  BlockLedger::Assignment assignment;
  KVTIER_RETURN_IF_ERROR(
      TakeBlocks(holder, count, patience, [&](BlockLedger& ledger) -> absl::Status {
        KVTIER_ASSIGN_OR_RETURN(assignment,
                                ledger.Assign(holder, count, shared, shared_generations, tags));
        return absl::OkStatus();
      }));
  return assignment;
}

absl::Status Cache::TakeBlocks(int64_t holder, int32_t count, const Patience& patience,
                               const std::function<absl::Status(BlockLedger&)>& take) {
  const Patience for_quarantine = patience.Until(clock_->Now() + kQuarantineWaitMax);
  MutexLock lock(&mutex_);
  while (true) {
    KVTIER_RETURN_IF_ERROR(CheckAlive());
    const absl::Status taken = take(*ledger_);
    if (taken.ok() || ErrorReasonOf(taken) != "BLOCKS_EXHAUSTED") return taken;
    const int64_t soon = int64_t{ledger_->AvailableTo(holder)} + ledger_->quarantined_count();
    if (ledger_->quarantined_count() == 0 || count > soon) return taken;
    if (!WaitForChange(&quarantine_changed_, &mutex_, *clock_, for_quarantine)) return taken;
  }
}

void Cache::UndoAssign(int64_t holder, const BlockLedger::Assignment& assignment) {
  BlockLedger::Released released;
  {
    MutexLock lock(&mutex_);
    if (ledger_ == nullptr) return;
    released = ledger_->Undo(holder, assignment);
  }
  ReleaseWhenPassed({released.quarantine});
}

absl::Status Cache::CheckFree(int64_t holder, const std::vector<int32_t>& blocks) const {
  MutexLock lock(&mutex_);
  KVTIER_RETURN_IF_ERROR(CheckAlive());
  return ledger_->CheckFree(holder, blocks);
}

absl::StatusOr<int32_t> Cache::Free(int64_t holder, const std::vector<int32_t>& blocks) {
  BlockLedger::Released released;
  {
    MutexLock lock(&mutex_);
    KVTIER_RETURN_IF_ERROR(CheckAlive());
    KVTIER_ASSIGN_OR_RETURN(released, ledger_->Free(holder, blocks));
  }
  ReleaseWhenPassed({released.quarantine});
  return released.block_count;
}

int32_t Cache::RemoveHolders(const std::vector<int64_t>& holders, bool keep) {
  int32_t block_count = 0;
  std::vector<int64_t> quarantines;
  {
    MutexLock lock(&mutex_);
    if (ledger_ == nullptr) return 0;
    for (const int64_t holder : holders) {
      const BlockLedger::Released released = ledger_->RemoveHolder(holder, keep);
      block_count += released.block_count;
      quarantines.push_back(released.quarantine);
    }
    // Reservations are free for others at once.
    quarantine_changed_.NotifyAll();
  }
  ReleaseWhenPassed(std::move(quarantines));
  return block_count;
}

absl::Status Cache::CheckAssigned(const std::vector<int32_t>& blocks) const {
  MutexLock lock(&mutex_);
  KVTIER_RETURN_IF_ERROR(CheckAlive());
  return ledger_->CheckAssigned(blocks);
}

int32_t Cache::ReservedFor(int64_t holder) const {
  MutexLock lock(&mutex_);
  return ledger_ == nullptr ? 0 : ledger_->ReservedFor(holder);
}

int32_t Cache::BlocksOf(int64_t holder) const {
  MutexLock lock(&mutex_);
  return ledger_ == nullptr ? 0 : ledger_->BlocksOf(holder);
}

void Cache::SetRetention(const Retention& retention) {
  MutexLock lock(&mutex_);
  if (ledger_ == nullptr) return;
  ledger_->SetKeptMax(retention.duration > absl::ZeroDuration() ? retention.blocks_max : 0);
  if (memory_.file() != nullptr) memory_.file()->SetRetention(retention);
}

void Cache::SetKeptProtected(bool is_protected) {
  MutexLock lock(&mutex_);
  if (ledger_ != nullptr) ledger_->SetKeptProtected(is_protected);
}

absl::StatusOr<std::vector<KeptBlockInfo>> Cache::ListKept(int32_t first, int32_t count_max) const {
  MutexLock lock(&mutex_);
  KVTIER_RETURN_IF_ERROR(CheckAlive());
  std::vector<KeptBlockInfo> infos;
  for (const BlockLedger::KeptBlock& kept : ledger_->ListKept(first, count_max)) {
    infos.push_back({.block_id = kept.block,
                     .generation = kept.generation,
                     .tag = kept.tag,
                     .rows_backed = memory_.RowsBacked(kept.block, kept.generation)});
  }
  return infos;
}

int32_t Cache::kept_count() const {
  MutexLock lock(&mutex_);
  return ledger_ == nullptr ? 0 : ledger_->kept_count();
}

void Cache::Preserve() {
  MutexLock lock(&mutex_);
  if (ledger_ == nullptr || memory_.file() == nullptr) return;
  ledger_->StopRecording();
  preserved_ = true;
}

void Cache::Forget() {
  MutexLock lock(&mutex_);
  if (ledger_ == nullptr || memory_.file() == nullptr || preserved_) return;
  memory_.file()->Remove();
}

void Cache::Join(std::shared_ptr<Attachment> attachment) {
  MutexLock lock(&mutex_);
  AttachmentList list = *attachments_;
  list.push_back(std::move(attachment));
  attachments_ = std::make_shared<const AttachmentList>(std::move(list));
}

void Cache::Leave(const Attachment* attachment) {
  // Dropped without the lock.
  std::shared_ptr<Attachment> leaving;
  std::shared_ptr<const AttachmentList> before;
  MutexLock lock(&mutex_);
  before = attachments_;
  AttachmentList list = *before;
  const auto found =
      std::find_if(list.begin(), list.end(),
                   [&](const std::shared_ptr<Attachment>& a) { return a.get() == attachment; });
  if (found == list.end()) return;
  leaving = std::move(*found);
  list.erase(found);
  attachments_ = std::make_shared<const AttachmentList>(std::move(list));
  for (size_t g = 0; g < ended_counts_.size(); ++g) {
    ended_counts_[g] += leaving->ReadCounts(static_cast<int>(g));
  }
}

std::shared_ptr<const Cache::AttachmentList> Cache::Attachments() const {
  MutexLock lock(&mutex_);
  return attachments_;
}

bool Cache::LooksIdle(int64_t block_count) const {
  if (block_count > kBlocksAtOnceMax) return false;
  int64_t owners = 0;
  const std::shared_ptr<const AttachmentList> attachments = Attachments();
  for (const std::shared_ptr<Attachment>& attachment : *attachments) {
    if (!attachment->LooksIdle()) return false;
    owners += attachment->requests().regions_end() * OwnersOfARegion(layout_);
  }
  return owners <= kOwnersAtOnceMax;
}

std::vector<Counts> Cache::GroupCounts() const {
  MutexLock lock(&mutex_);
  return GroupCountsLocked();
}

std::vector<Counts> Cache::GroupCountsLocked() const {
  std::vector<Counts> groups = ended_counts_;
  for (const std::shared_ptr<Attachment>& attachment : *attachments_) {
    for (size_t g = 0; g < groups.size(); ++g) {
      groups[g] += attachment->ReadCounts(static_cast<int>(g));
    }
  }
  return groups;
}

// Statistics are read under the lock, so that an attachment that leaves meanwhile is neither
// missed nor counted twice: totals never go down.
bool Cache::FillSnapshot(CacheSnapshot* snapshot) const {
  snapshot->cache = name_;
  snapshot->host_bytes = host_bytes();
  for (int32_t kind = 0; kind < kOperationKindCount; ++kind) {
    snapshot->latencies[kind] = latencies_[kind].Read();
  }
  MutexLock lock(&mutex_);
  snapshot->groups = ended_counts_;
  for (const std::shared_ptr<Attachment>& attachment : *attachments_) {
    SessionCacheSnapshot session;
    session.session_id = attachment->session_id();
    session.client_name = attachment->client_name();
    session.requests = attachment->requests().request_count();
    session.operations_in_flight = attachment->tickets().in_flight();
    session.device_bytes = attachment->device_bytes();
    for (size_t g = 0; g < ended_counts_.size(); ++g) {
      session.groups.push_back(attachment->ReadCounts(static_cast<int>(g)));
      snapshot->groups[g] += session.groups.back();
    }
    // One that is leaving counts until it has left, but is nobody's any more.
    if (!attachment->requests().closed()) snapshot->sessions.push_back(std::move(session));
  }
  if (ledger_ == nullptr) return false;
  snapshot->blocks_used = ledger_->used_count();
  snapshot->blocks_free = ledger_->free_count() - ledger_->reserved_count();
  snapshot->blocks_reserved = ledger_->reserved_count();
  snapshot->blocks_quarantined = ledger_->quarantined_count();
  snapshot->blocks_kept = ledger_->kept_count();
  snapshot->largest_free_run_blocks = ledger_->largest_free_run();
  return true;
}

void Cache::ReleaseMemory() {
  bool keep_file = false;
  {
    MutexLock lock(&mutex_);
    ledger_.reset();
    keep_file = preserved_;
    quarantine_changed_.NotifyAll();
  }
  memory_.Release(keep_file, /*untouched=*/!handed_out_.load(std::memory_order_relaxed));
}

absl::Status Cache::CheckAlive() const {
  return ledger_ != nullptr ? absl::OkStatus() : SessionClosed("");
}

// Every attachment, not only those that held the blocks: one that shared them earlier may still
// have enqueued work that reads them. One that joins from now on cannot.
void Cache::ReleaseWhenPassed(std::vector<int64_t> quarantines) {
  const auto none = std::remove(quarantines.begin(), quarantines.end(), BlockLedger::kNoQuarantine);
  quarantines.erase(none, quarantines.end());
  if (quarantines.empty()) return;
  const std::shared_ptr<const AttachmentList> attachments = Attachments();
  // One more than there are, for this function itself.
  const auto left = std::make_shared<std::atomic<size_t>>(attachments->size() + 1);
  const auto passed = [self = shared_from_this(), left, quarantines = std::move(quarantines)] {
    if (left->fetch_sub(1) == 1) self->ReleaseQuarantines(quarantines);
  };
  for (const std::shared_ptr<Attachment>& attachment : *attachments) {
    attachment->WhenPassed(passed);
  }
  passed();
}

void Cache::ReleaseQuarantines(const std::vector<int64_t>& quarantines) {
  MutexLock lock(&mutex_);
  if (ledger_ == nullptr) return;
  for (const int64_t quarantine : quarantines) ledger_->ReleaseQuarantine(quarantine);
  quarantine_changed_.NotifyAll();
}

}  // namespace kvtier
