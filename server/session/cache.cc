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

}  // namespace

Cache::Cache(absl::string_view name, const CacheLayout& layout, const Clock* clock)
    : name_(name), layout_(layout), clock_(clock), ended_counts_(layout.groups.size()) {}

absl::StatusOr<std::shared_ptr<Cache>> Cache::Create(absl::string_view name,
                                                     const CacheLayout& layout, HostPool* pool,
                                                     DeviceBackend* backend, const Clock* clock) {
  std::shared_ptr<Cache> cache(new Cache(name, layout, clock));
  KVTIER_ASSIGN_OR_RETURN(cache->part_, pool->Carve(HostGeometryOf(layout).size_bytes));
  cache->part_offset_bytes_ = cache->part_.offset_bytes();
  cache->host_bytes_ = cache->part_.size_bytes();
  const TrackingGeometry tracking = TrackingGeometryOf(layout);
  KVTIER_ASSIGN_OR_RETURN(cache->block_generation_,
                          SharedMemory::Create("kvtier:block_generation",
                                               tracking.block_generation.offset_bytes +
                                                   tracking.block_generation.size_bytes,
                                               /*read_only_for_others=*/true));
  KVTIER_ASSIGN_OR_RETURN(cache->backed_generation_,
                          SharedMemory::Create("kvtier:backed_generation", tracking.backed_bytes));
  for (const SharedMemory* memory : {&*cache->block_generation_, &*cache->backed_generation_}) {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<HostRegistration> registration,
                            backend->RegisterHost(memory->data(), memory->size_bytes()));
    cache->registrations_.push_back(std::move(registration));
  }
  MutexLock lock(&cache->mutex_);
  cache->ledger_ =
      std::make_unique<BlockLedger>(std::string(name), layout.block_count,
                                    NeighbourhoodBlocksOf(layout), cache->host().block_generation);
  return cache;
}

HostView Cache::host() const {
  const TrackingGeometry tracking = TrackingGeometryOf(layout_);
  return {.rows = part_.data(),
          .block_generation = reinterpret_cast<int32_t*>(block_generation_->data() +
                                                         tracking.block_generation.offset_bytes),
          .backed_generation = backed_generation_->data()};
}

int64_t Cache::NewHolder() {
  MutexLock lock(&mutex_);
  return ++last_holder_;
}

absl::Status Cache::AddHolder(int64_t holder, int32_t reserve_blocks, absl::Time deadline) {
  return TakeBlocks(holder, reserve_blocks, deadline,
                    [&](BlockLedger& ledger) { return ledger.AddHolder(holder, reserve_blocks); });
}

absl::StatusOr<BlockLedger::Assignment> Cache::Assign(
    int64_t holder, int32_t count, const std::vector<int32_t>& shared,
    const std::vector<int32_t>& shared_generations, absl::Time deadline) {
  BlockLedger::Assignment assignment;
  KVTIER_RETURN_IF_ERROR(
      TakeBlocks(holder, count, deadline, [&](BlockLedger& ledger) -> absl::Status {
        KVTIER_ASSIGN_OR_RETURN(assignment,
                                ledger.Assign(holder, count, shared, shared_generations));
        return absl::OkStatus();
      }));
  return assignment;
}

absl::Status Cache::TakeBlocks(int64_t holder, int32_t count, absl::Time deadline,
                               const std::function<absl::Status(BlockLedger&)>& take) {
  const absl::Time give_up = std::min(deadline, clock_->Now() + kQuarantineWaitMax);
  MutexLock lock(&mutex_);
  while (true) {
    KVTIER_RETURN_IF_ERROR(CheckAlive());
    const absl::Status taken = take(*ledger_);
    if (taken.ok() || ErrorReasonOf(taken) != "BLOCKS_EXHAUSTED") return taken;
    const int64_t soon = int64_t{ledger_->AvailableTo(holder)} + ledger_->quarantined_count();
    if (ledger_->quarantined_count() == 0 || count > soon) return taken;
    if (!WaitForChange(&quarantine_changed_, &mutex_, *clock_, give_up)) return taken;
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

int32_t Cache::RemoveHolders(const std::vector<int64_t>& holders) {
  int32_t block_count = 0;
  std::vector<int64_t> quarantines;
  {
    MutexLock lock(&mutex_);
    if (ledger_ == nullptr) return 0;
    for (const int64_t holder : holders) {
      const BlockLedger::Released released = ledger_->RemoveHolder(holder);
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

void Cache::Join(std::shared_ptr<Attachment> attachment) {
  MutexLock lock(&mutex_);
  attachments_.push_back(std::move(attachment));
}

void Cache::Leave(const Attachment* attachment) {
  // Dropped without the lock.
  std::shared_ptr<Attachment> leaving;
  MutexLock lock(&mutex_);
  const auto found =
      std::find_if(attachments_.begin(), attachments_.end(),
                   [&](const std::shared_ptr<Attachment>& a) { return a.get() == attachment; });
  if (found == attachments_.end()) return;
  leaving = std::move(*found);
  attachments_.erase(found);
  for (size_t g = 0; g < ended_counts_.size(); ++g) {
    ended_counts_[g] += leaving->ReadCounts(static_cast<int>(g));
  }
}

std::vector<std::shared_ptr<Attachment>> Cache::Attachments() const {
  MutexLock lock(&mutex_);
  return attachments_;
}

std::vector<Counts> Cache::GroupCounts() const {
  MutexLock lock(&mutex_);
  return GroupCountsLocked();
}

std::vector<Counts> Cache::GroupCountsLocked() const {
  std::vector<Counts> groups = ended_counts_;
  for (const std::shared_ptr<Attachment>& attachment : attachments_) {
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
  for (const std::shared_ptr<Attachment>& attachment : attachments_) {
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
  snapshot->largest_free_run_blocks = ledger_->largest_free_run();
  return true;
}

void Cache::ReleaseMemory() {
  {
    MutexLock lock(&mutex_);
    ledger_.reset();
    quarantine_changed_.NotifyAll();
  }
  registrations_.clear();
  block_generation_.reset();
  backed_generation_.reset();
  part_ = PoolPart();
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
  const std::vector<std::shared_ptr<Attachment>> attachments = Attachments();
  // One more than there are, for this function itself.
  const auto left = std::make_shared<std::atomic<size_t>>(attachments.size() + 1);
  const auto passed = [self = shared_from_this(), left, quarantines = std::move(quarantines)] {
    if (left->fetch_sub(1) == 1) self->ReleaseQuarantines(quarantines);
  };
  for (const std::shared_ptr<Attachment>& attachment : attachments) {
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
