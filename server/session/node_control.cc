// Requests and blocks.
//
// A verb that fails leaves things as they were. Its order is therefore: check and take what can
// be taken back, tell the device and wait, commit under the table's lock; or take it back.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/node_impl.h"

namespace kvtier {
namespace {

absl::Status CheckRequestId(absl::string_view request_id) {
  if (!request_id.empty() && request_id.size() <= kNameBytesMax) return absl::OkStatus();
  return FieldInvalid("request_id", absl::StrCat(request_id.size(), " bytes"),
                      absl::StrCat("1..", kNameBytesMax, " bytes"));
}

// Counters of dropped copies around invalidations of several device streams; lives until they
// are done.
struct InvalidationCounts {
  std::vector<std::unique_ptr<int64_t[]>> before_and_after;  // [2 * group] and [2 * group + 1]
  int group_count = 0;
  int64_t dropped_here = 0;  // without any of that

  int64_t* Add() {
    before_and_after.push_back(std::make_unique<int64_t[]>(2 * group_count));
    return before_and_after.back().get();
  }
  int64_t Dropped() const {
    int64_t dropped = dropped_here;
    for (const auto& counts : before_and_after) {
      for (int g = 0; g < group_count; ++g) {
        dropped = WrappingSum(dropped, WrappingDifference(counts[2 * g + 1], counts[2 * g]));
      }
    }
    return dropped;
  }
};

// Owners that one thread looks at while it keeps others from the device stream.
constexpr int64_t kOwnersHereMax = 1 << 18;

// For a verb that may not wait: as it looks, it will not have to. Before it takes anything.
absl::Status CheckIdle(const Cache& cache, int64_t block_count, const Patience& patience) {
  if (patience.may_wait() || cache.LooksIdle(block_count)) return absl::OkStatus();
  patience.GiveUp();
  return DeadlinePassed("the call would have to wait");
}

// Enqueues the invalidation of `blocks` on every attachment of the cache that may have copies, and
// on `own` even without blocks: pending changes of its block table go along. Copies are looked for
// where requests are: a region without one is emptied, on the same device stream, before it gets
// one. `completions` expects what was enqueued. Where device streams have nothing to do, it is done
// here and now.
absl::Status EnqueueInvalidations(Attachment& own, const std::vector<int32_t>& blocks,
                                  const std::shared_ptr<InvalidationCounts>& counts,
                                  Completions& completions) {
  const CacheLayout& layout = own.cache()->layout();
  counts->group_count = static_cast<int>(layout.groups.size());
  const auto attachments = own.cache()->Attachments();
  for (const std::shared_ptr<Attachment>& attachment : *attachments) {
    const bool is_own = attachment.get() == &own;
    const int32_t regions = attachment->requests().regions_end();
    if (!is_own && (blocks.empty() || regions == 0)) continue;
    if (regions * OwnersOfARegion(layout) <= kOwnersHereMax) {
      if (const std::optional<int64_t> dropped = attachment->InvalidateHere(blocks)) {
        counts->dropped_here += *dropped;
        continue;
      }
    }
    int64_t* const around = counts->Add();
    const absl::Status enqueued = attachment->Enqueue(
        [&](DeviceStream* stream, const HotTier& tier) -> absl::Status {
          for (int g = 0; g < tier.group_count() && !blocks.empty(); ++g) {
            KVTIER_RETURN_IF_ERROR(
                tier.EnqueueInvalidate(stream, g, attachment->requests().regions_end(), blocks,
                                       &around[2 * g], &around[2 * g + 1]));
          }
          return absl::OkStatus();
        },
        counts, completions.Expect());
    if (enqueued.ok()) continue;
    completions.Cancel();
    // A session that is leaving enqueues nothing more: it cannot hit on anything.
    if (!is_own && ErrorReasonOf(enqueued) == "SESSION_CLOSED") continue;
    return enqueued;
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT / FIELD_INVALID if a request's table has no room for `added` more blocks. A
// call that asks for more blocks than the rest of the cache has is left to the ledger, which
// says so.
absl::Status CheckTableRoom(const CacheLayout& layout, int32_t table_end, int32_t blocks_held,
                            int64_t added, int32_t count) {
  if (table_end + added <= layout.max_blocks_per_request) return absl::OkStatus();
  if (count > layout.block_count - blocks_held) return absl::OkStatus();
  return FieldInvalid(
      "count", absl::StrCat(added), absl::StrCat("0..", layout.max_blocks_per_request - table_end),
      absl::StrCat("the request's block table has ", layout.max_blocks_per_request,
                   " entries (max_blocks_per_request), ", table_end, " of them in use"));
}

// What a verb took back is in the worker's table as well, although nothing else may be enqueued for
// long: a part of the change may be there already, and its kernels read nothing but that table.
void WriteTableSoon(Attachment& attachment) {
  attachment.WhenPassed([] {});
}

}  // namespace

absl::StatusOr<int32_t> Node::Impl::AdmitRequest(Attachment& attachment,
                                                 absl::string_view request_id,
                                                 int32_t reserve_blocks, const Patience& patience) {
  KVTIER_RETURN_IF_ERROR(CheckRequestId(request_id));
  Cache& cache = *attachment.cache();
  KVTIER_RETURN_IF_ERROR(CheckIdle(cache, 0, patience));
  if (reserve_blocks < 0) {
    return FieldInvalid("reserve_blocks", absl::StrCat(reserve_blocks),
                        absl::StrCat("0..", cache.layout().block_count));
  }
  RequestTable& requests = attachment.requests();
  KVTIER_ASSIGN_OR_RETURN(
      const RequestTable::Admission admission,
      requests.BeginAdmit(request_id, reserve_blocks, cache.NewHolder(), draining_, patience));
  const Request& request = admission.request;
  if (admission.existing) return request.region;

  const absl::Status admitted = [&]() -> absl::Status {
    KVTIER_RETURN_IF_ERROR(cache.AddHolder(request.holder, reserve_blocks, patience));
    requests.EditTable([&](BlockTableImage& table) { table.Clear(request.region); });
    const auto completions = std::make_shared<Completions>();
    KVTIER_RETURN_IF_ERROR(attachment.Enqueue(
        [&](DeviceStream* stream, const HotTier& tier) {
          return tier.EnqueueResetRegion(stream, request.region);
        },
        nullptr, completions->Expect(), /*is_short=*/true));
    KVTIER_RETURN_IF_ERROR(completions->Wait(*clock_, patience));
    return requests.CommitAdmit(request_id);
  }();
  if (admitted.ok()) return request.region;
  cache.RemoveHolders({request.holder});
  requests.AbortAdmit(request_id);
  attachment.WhenPassed([self = attachment.shared_from_this(), region = request.region] {
    self->requests().ReturnRegion(region);
  });
  return admitted;
}

absl::StatusOr<int32_t> Node::Impl::ReleaseRequest(Attachment& attachment,
                                                   absl::string_view request_id,
                                                   const Patience& patience) {
  RequestTable& requests = attachment.requests();
  KVTIER_RETURN_IF_ERROR(CheckIdle(*attachment.cache(), 0, patience));
  KVTIER_ASSIGN_OR_RETURN(const RequestTable::Use use, requests.Acquire(request_id, patience));
  KVTIER_RETURN_IF_ERROR(CheckDeadline(patience.deadline()));
  const int32_t region = use.request().region;
  std::vector<int32_t> before;
  requests.EditTable([&](BlockTableImage& table) {
    before = table.row(region);
    table.Restore(region, {});
  });
  const auto restore = [&] {
    requests.EditTable([&](BlockTableImage& table) { table.Restore(region, before); });
    WriteTableSoon(attachment);
  };
  const absl::Status flushed = attachment.FlushTable();
  if (!flushed.ok()) {
    restore();
    return flushed;
  }
  // The commit point: after it the id is free, and the region is when the device has passed.
  const absl::Status removed = requests.Remove(use);
  if (!removed.ok()) {
    restore();
    return removed;
  }
  const int32_t freed = attachment.cache()->RemoveHolders({use.request().holder});
  attachment.WhenPassed(
      [self = attachment.shared_from_this(), region] { self->requests().ReturnRegion(region); });
  return freed;
}

absl::StatusOr<AssignResult> Node::Impl::AssignBlocks(
    Attachment& attachment, absl::string_view request_id, int32_t count,
    const std::vector<int32_t>& shared_blocks, const std::vector<int32_t>& shared_generations,
    const std::vector<int64_t>& tags, const Patience& patience) {
  if (draining_) return Draining();
  if (count < 0) return FieldInvalid("count", absl::StrCat(count), ">= 0");
  RequestTable& requests = attachment.requests();
  Cache& cache = *attachment.cache();
  const int64_t added = int64_t{count} + static_cast<int64_t>(shared_blocks.size());
  KVTIER_RETURN_IF_ERROR(CheckIdle(cache, added, patience));
  KVTIER_ASSIGN_OR_RETURN(const RequestTable::Use use, requests.Acquire(request_id, patience));
  KVTIER_RETURN_IF_ERROR(CheckDeadline(patience.deadline()));
  const Request& request = use.request();
  AssignResult result;
  requests.EditTable(
      [&](BlockTableImage& table) { result.table_index = table.EndOf(request.region); });
  KVTIER_RETURN_IF_ERROR(CheckTableRoom(cache.layout(), result.table_index,
                                        cache.BlocksOf(request.holder), added, count));
  KVTIER_ASSIGN_OR_RETURN(
      const BlockLedger::Assignment assignment,
      cache.Assign(request.holder, count, shared_blocks, shared_generations, tags, patience));

  // Taken; from here on it is taken back unless it is committed.
  requests.EditTable([&](BlockTableImage& table) {
    table.Write(request.region, result.table_index, assignment.block_ids);
  });
  const auto counts = std::make_shared<InvalidationCounts>();
  const absl::Status assigned = [&]() -> absl::Status {
    const auto completions = std::make_shared<Completions>();
    // Blocks that had no tenant before have no copies: see kNeverAssigned.
    KVTIER_RETURN_IF_ERROR(
        EnqueueInvalidations(attachment, assignment.recycled, counts, *completions));
    KVTIER_RETURN_IF_ERROR(completions->Wait(*clock_, patience));
    return requests.CheckOpen();  // the commit point
  }();
  if (!assigned.ok()) {
    requests.EditTable(
        [&](BlockTableImage& table) { table.Remove(request.region, assignment.block_ids); });
    cache.UndoAssign(request.holder, assignment);
    // Shared blocks come with no quarantine that would see to it.
    WriteTableSoon(attachment);
    return assigned;
  }
  result.block_ids = assignment.block_ids;
  result.generations = assignment.generations;
  result.invalidated_copies = counts->Dropped();
  return result;
}

absl::StatusOr<int32_t> Node::Impl::FreeBlocks(Attachment& attachment, absl::string_view request_id,
                                               const std::vector<int32_t>& blocks,
                                               const Patience& patience) {
  RequestTable& requests = attachment.requests();
  Cache& cache = *attachment.cache();
  KVTIER_RETURN_IF_ERROR(CheckIdle(cache, std::ssize(blocks), patience));
  KVTIER_ASSIGN_OR_RETURN(const RequestTable::Use use, requests.Acquire(request_id, patience));
  const Request& request = use.request();
  KVTIER_RETURN_IF_ERROR(cache.CheckFree(request.holder, blocks));
  KVTIER_RETURN_IF_ERROR(CheckDeadline(patience.deadline()));
  std::vector<int32_t> before;
  requests.EditTable(
      [&](BlockTableImage& table) { before = table.Remove(request.region, blocks); });
  const absl::StatusOr<int32_t> freed = [&]() -> absl::StatusOr<int32_t> {
    KVTIER_RETURN_IF_ERROR(attachment.FlushTable());
    KVTIER_RETURN_IF_ERROR(requests.CheckOpen());
    return cache.Free(request.holder, blocks);  // the commit point
  }();
  if (!freed.ok()) {
    requests.EditTable([&](BlockTableImage& table) { table.Restore(request.region, before); });
    WriteTableSoon(attachment);
  }
  return freed;
}

absl::StatusOr<int64_t> Node::Impl::InvalidateBlocks(Attachment& attachment,
                                                     const std::vector<int32_t>& blocks,
                                                     const Patience& patience) {
  if (blocks.empty()) return FieldInvalid("block_ids", "empty", "at least one block");
  KVTIER_RETURN_IF_ERROR(CheckIdle(*attachment.cache(), std::ssize(blocks), patience));
  KVTIER_RETURN_IF_ERROR(attachment.cache()->CheckAssigned(blocks));
  const auto counts = std::make_shared<InvalidationCounts>();
  const auto completions = std::make_shared<Completions>();
  KVTIER_RETURN_IF_ERROR(EnqueueInvalidations(attachment, blocks, counts, *completions));
  KVTIER_RETURN_IF_ERROR(completions->Wait(*clock_, patience));
  return counts->Dropped();
}

}  // namespace kvtier
