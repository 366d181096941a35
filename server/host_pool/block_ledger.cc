#include "server/host_pool/block_ledger.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// When it pays to ask again for blocks that others hold: about a decode step.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);

absl::Status HolderUnknown() {
  return MakeError(absl::StatusCode::kNotFound, "REQUEST_UNKNOWN",
                   "the request holds no blocks any more");
}

absl::Status NotAssigned(int32_t block) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "BLOCK_NOT_ASSIGNED",
                   absl::StrCat("block ", block, " is held by no request; was it freed already?"),
                   {{"block_id", absl::StrCat(block)}});
}

// FIELD_INVALID if an id occurs twice.
absl::Status CheckDistinct(const std::vector<int32_t>& blocks) {
  std::vector<int32_t> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return FieldInvalid("block_ids", absl::StrCat(*twice, " more than once"), "without repetition");
}

}  // namespace

BlockLedger::BlockLedger(std::string name, int32_t block_count, int32_t neighbourhood_blocks,
                         int32_t* generations)
    : name_(std::move(name)),
      block_count_(block_count),
      generations_(generations),
      places_(block_count, neighbourhood_blocks),
      holders_of_(block_count, 0) {
  std::fill_n(generations_, block_count_, kNeverAssigned);
}

absl::Status BlockLedger::AddHolder(Holder holder, int32_t reserve_blocks) {
  if (reserve_blocks < 0) {
    return FieldInvalid("reserve_blocks", absl::StrCat(reserve_blocks), ">= 0");
  }
  const int32_t available = free_count() - reserved_;
  if (reserve_blocks > available) return Exhausted(reserve_blocks, available);
  holders_[holder].reserved = reserve_blocks;
  reserved_ += reserve_blocks;
  return absl::OkStatus();
}

absl::StatusOr<BlockLedger::Assignment> BlockLedger::Assign(
    Holder holder, int32_t count, const std::vector<int32_t>& shared,
    const std::vector<int32_t>& shared_generations) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return HolderUnknown();
  HolderState& state = found->second;
  if (count < 0 || (count == 0 && shared.empty())) {
    return FieldInvalid("count", absl::StrCat(count), ">= 1, or >= 0 with shared blocks");
  }
  KVTIER_RETURN_IF_ERROR(CheckShared(state, shared, shared_generations));
  const int32_t available = AvailableTo(holder);
  if (count > available) return Exhausted(count, available);

  Assignment result;
  result.last_block_before = state.last_block;
  result.shared_count = static_cast<int32_t>(shared.size());
  result.drawn_reservation = std::min(count, state.reserved);
  state.reserved -= result.drawn_reservation;
  reserved_ -= result.drawn_reservation;
  result.block_ids = shared;
  for (const int32_t block : shared) result.generations.push_back(GenerationOf(block));
  // A shared prefix ends where its other holder's blocks go on: the place behind it is taken or
  // about to be, so only fresh blocks say where the next ones should lie.
  const int32_t next_to = state.last_block < 0 ? -1 : state.last_block + 1;
  for (const int32_t block : places_.Take(holder, count, next_to, state.reserved)) {
    if (GenerationOf(block) != kNeverAssigned) result.recycled.push_back(block);
    result.block_ids.push_back(block);
    result.generations.push_back(RaiseGeneration(block));
    state.last_block = block;
  }
  for (const int32_t block : result.block_ids) {
    ++holders_of_[block];
    state.blocks.insert(block);
  }
  return result;
}

BlockLedger::Released BlockLedger::Undo(Holder holder, const Assignment& assignment) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return {};
  std::vector<int32_t> nobodys;
  for (const int32_t block : assignment.block_ids) {
    if (found->second.blocks.erase(block) == 1 && Drop(block)) nobodys.push_back(block);
  }
  found->second.last_block = assignment.last_block_before;
  // A fresh block that someone shares by now does not come back, nor does its reservation.
  const int32_t restore =
      std::min(assignment.drawn_reservation, static_cast<int32_t>(nobodys.size()));
  return PutInQuarantine(std::move(nobodys), holder, restore);
}

absl::Status BlockLedger::CheckFree(Holder holder, const std::vector<int32_t>& blocks) const {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return HolderUnknown();
  if (blocks.empty()) return FieldInvalid("block_ids", "empty", "at least one block");
  KVTIER_RETURN_IF_ERROR(CheckAssigned(blocks));
  KVTIER_RETURN_IF_ERROR(CheckDistinct(blocks));
  for (const int32_t block : blocks) {
    if (found->second.blocks.contains(block)) continue;
    return MakeError(absl::StatusCode::kPermissionDenied, "BLOCK_FOREIGN",
                     absl::StrCat("block ", block, " belongs to other requests of cache ", name_),
                     {{"block_id", absl::StrCat(block)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockLedger::Released> BlockLedger::Free(Holder holder,
                                                        const std::vector<int32_t>& blocks) {
  KVTIER_RETURN_IF_ERROR(CheckFree(holder, blocks));
  HolderState& state = holders_.at(holder);
  std::vector<int32_t> nobodys;
  for (const int32_t block : blocks) {
    state.blocks.erase(block);
    if (Drop(block)) nobodys.push_back(block);
  }
  return PutInQuarantine(std::move(nobodys), 0, 0);
}

BlockLedger::Released BlockLedger::RemoveHolder(Holder holder) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return {};
  std::vector<int32_t> nobodys;
  for (const int32_t block : found->second.blocks) {
    if (Drop(block)) nobodys.push_back(block);
  }
  reserved_ -= found->second.reserved;
  holders_.erase(found);
  places_.Forget(holder);
  return PutInQuarantine(std::move(nobodys), 0, 0);
}

void BlockLedger::ReleaseQuarantine(int64_t quarantine) {
  const auto found = quarantines_.find(quarantine);
  if (found == quarantines_.end()) return;
  Quarantine ended = std::move(found->second);
  quarantines_.erase(found);
  quarantined_ -= static_cast<int32_t>(ended.blocks.size());
  places_.Put(std::move(ended.blocks));
  // In one step with the blocks becoming free: no one else can take them in between.
  const auto holder = holders_.find(ended.restore_to);
  if (ended.restore_count == 0 || holder == holders_.end()) return;
  holder->second.reserved += ended.restore_count;
  reserved_ += ended.restore_count;
}

absl::Status BlockLedger::CheckAssigned(const std::vector<int32_t>& blocks) const {
  KVTIER_RETURN_IF_ERROR(CheckRange(blocks));
  for (const int32_t block : blocks) {
    if (holders_of_[block] == 0) return NotAssigned(block);
  }
  return absl::OkStatus();
}

int32_t BlockLedger::AvailableTo(Holder holder) const {
  return free_count() - reserved_ + ReservedFor(holder);
}

int32_t BlockLedger::BlocksOf(Holder holder) const {
  const auto found = holders_.find(holder);
  return found == holders_.end() ? 0 : static_cast<int32_t>(found->second.blocks.size());
}

int32_t BlockLedger::ReservedFor(Holder holder) const {
  const auto found = holders_.find(holder);
  return found == holders_.end() ? 0 : found->second.reserved;
}

absl::Status BlockLedger::CheckShared(const HolderState& state, const std::vector<int32_t>& shared,
                                      const std::vector<int32_t>& shared_generations) const {
  if (!shared_generations.empty() && shared_generations.size() != shared.size()) {
    return FieldInvalid("shared_generations", absl::StrCat(shared_generations.size(), " entries"),
                        absl::StrCat("empty or one for each of ", shared.size(), " blocks"));
  }
  KVTIER_RETURN_IF_ERROR(CheckAssigned(shared));
  KVTIER_RETURN_IF_ERROR(CheckDistinct(shared));
  for (size_t i = 0; i < shared.size(); ++i) {
    if (state.blocks.contains(shared[i])) {
      return FieldInvalid("shared_block_ids", absl::StrCat(shared[i]),
                          "a block that this request does not hold already");
    }
    const int32_t expected = GenerationOf(shared[i]);
    if (shared_generations.empty() || shared_generations[i] == expected) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, "GENERATION_STALE",
                     absl::StrCat("block ", shared[i], " is at generation ", expected, ", not ",
                                  shared_generations[i], ": it was assigned again since"),
                     {{"block_id", absl::StrCat(shared[i])},
                      {"value", absl::StrCat(shared_generations[i])},
                      {"expected", absl::StrCat(expected)}});
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::CheckRange(const std::vector<int32_t>& blocks) const {
  for (const int32_t block : blocks) {
    if (block >= 0 && block < block_count_) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, "BLOCK_OUT_OF_RANGE",
                     absl::StrCat("block ", block, " is not one of the ", block_count_,
                                  " blocks of cache ", name_),
                     {{"block_id", absl::StrCat(block)}, {"limit", absl::StrCat(block_count_)}});
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::Exhausted(int64_t requested, int32_t available) const {
  const ErrorMetadata metadata = {{"cache", name_},
                                  {"requested", absl::StrCat(requested)},
                                  {"free", absl::StrCat(available)},
                                  {"limit", absl::StrCat(block_count_)}};
  const std::string message = absl::StrCat("cache ", name_, " has ", available, " free blocks of ",
                                           block_count_, "; ", requested, " were asked for");
  if (requested > block_count_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "BLOCKS_EXHAUSTED",
                     absl::StrCat(message, ": more than the cache has"), metadata);
  }
  return MakeRetryableError(absl::StatusCode::kResourceExhausted, "BLOCKS_EXHAUSTED",
                            absl::StrCat(message, ": free blocks or wait for others to"),
                            kRetryDelay, metadata);
}

int32_t BlockLedger::GenerationOf(int32_t block) const {
  return std::atomic_ref<int32_t>(generations_[block]).load(std::memory_order_relaxed);
}

int32_t BlockLedger::RaiseGeneration(int32_t block) {
  const int32_t now = GenerationOf(block);
  // 1 is first: 0 is what rows that were never backed up carry.
  const int32_t next = now < 0 || now == std::numeric_limits<int32_t>::max() ? 1 : now + 1;
  std::atomic_ref<int32_t>(generations_[block]).store(next, std::memory_order_release);
  return next;
}

BlockLedger::Released BlockLedger::PutInQuarantine(std::vector<int32_t> blocks, Holder restore_to,
                                                   int32_t restore_count) {
  if (blocks.empty()) return {};
  Released released;
  released.quarantine = ++last_quarantine_;
  released.block_count = static_cast<int32_t>(blocks.size());
  quarantined_ += released.block_count;
  quarantines_[released.quarantine] = {std::move(blocks), restore_to, restore_count};
  return released;
}

}  // namespace kvtier
