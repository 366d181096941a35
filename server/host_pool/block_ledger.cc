#include "server/host_pool/block_ledger.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
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
    : BlockLedger(std::move(name), block_count, neighbourhood_blocks,
                  BlockRecords{.generations = generations}, /*adopt=*/false) {}

BlockLedger::BlockLedger(std::string name, int32_t block_count, int32_t neighbourhood_blocks,
                         BlockRecords records, bool adopt)
    : name_(std::move(name)),
      block_count_(block_count),
      records_(records),
      places_(block_count, neighbourhood_blocks),
      holders_of_(block_count, 0),
      kept_max_(block_count) {
  if (!adopt) {
    std::fill_n(records_.generations, block_count_, kNeverAssigned);
    if (records_.held != nullptr) std::fill_n(records_.held, block_count_, uint8_t{0});
    if (records_.tags != nullptr) std::fill_n(records_.tags, block_count_, int64_t{0});
    return;
  }
  for (int32_t block = 0; block < block_count_; ++block) {
    // Marked held, but never given a generation: no write of ours leaves that.
    if (records_.held[block] != 1 || GenerationOf(block) < 1) continue;
    places_.TakeOne(block);
    kept_.Add(block);
  }
}

absl::Status BlockLedger::AddHolder(Holder holder, int32_t reserve_blocks) {
  if (reserve_blocks < 0) {
    return FieldInvalid("reserve_blocks", absl::StrCat(reserve_blocks), ">= 0");
  }
  const int32_t available = Obtainable() - reserved_;
  if (reserve_blocks > available) return Exhausted(reserve_blocks, available);
  MakeFree(reserved_ + reserve_blocks);
  holders_[holder].reserved = reserve_blocks;
  reserved_ += reserve_blocks;
  return absl::OkStatus();
}

absl::StatusOr<BlockLedger::Assignment> BlockLedger::Assign(
    Holder holder, int32_t count, const std::vector<int32_t>& shared,
    const std::vector<int32_t>& shared_generations, const std::vector<int64_t>& tags) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return HolderUnknown();
  HolderState& state = found->second;
  if (count < 0 || (count == 0 && shared.empty())) {
    return FieldInvalid("count", absl::StrCat(count), ">= 1, or >= 0 with shared blocks");
  }
  if (!tags.empty() && static_cast<int64_t>(tags.size()) != count) {
    return FieldInvalid("block_tags", absl::StrCat(tags.size(), " entries"),
                        absl::StrCat("empty or one for each of ", count, " new blocks"));
  }
  KVTIER_RETURN_IF_ERROR(CheckShared(state, shared, shared_generations));
  Assignment result;
  std::copy_if(shared.begin(), shared.end(), std::back_inserter(result.taken_up),
               [this](int32_t block) { return kept_.Contains(block); });
  // What is taken up again can't be given out.
  const int32_t available =
      AvailableTo(holder) - (kept_protected_ ? 0 : static_cast<int32_t>(result.taken_up.size()));
  if (count > available) return Exhausted(count, available);
  for (const int32_t block : result.taken_up) kept_.Remove(block);
  MakeFree(reserved_ - std::min(count, state.reserved) + count);

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
  size_t tag = 0;
  for (const int32_t block : places_.Take(holder, count, next_to, state.reserved)) {
    if (GenerationOf(block) != kNeverAssigned) result.recycled.push_back(block);
    result.block_ids.push_back(block);
    result.generations.push_back(RaiseGeneration(block));
    if (records_.tags != nullptr) records_.tags[block] = tags.empty() ? 0 : tags[tag++];
    Record(block, true);
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
  std::vector<int32_t> nobodys, kept;
  for (const int32_t block : assignment.block_ids) {
    if (found->second.blocks.erase(block) == 0 || !Drop(block)) continue;
    const auto taken_up = std::find(assignment.taken_up.begin(), assignment.taken_up.end(), block);
    (taken_up == assignment.taken_up.end() ? nobodys : kept).push_back(block);
  }
  found->second.last_block = assignment.last_block_before;
  // A fresh block that someone shares by now does not come back, nor does its reservation.
  const int32_t restore =
      std::min(assignment.drawn_reservation, static_cast<int32_t>(nobodys.size()));
  return PutInQuarantine({.blocks = std::move(nobodys),
                          .kept = std::move(kept),
                          .restore_to = holder,
                          .restore_count = restore});
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
  return PutInQuarantine({.blocks = std::move(nobodys)});
}

BlockLedger::Released BlockLedger::RemoveHolder(Holder holder, bool keep) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return {};
  std::vector<int32_t> nobodys;
  for (const int32_t block : found->second.blocks) {
    if (Drop(block)) nobodys.push_back(block);
  }
  reserved_ -= found->second.reserved;
  holders_.erase(found);
  places_.Forget(holder);
  // The set has no order. What comes later in a context is worth nothing without what comes before
  // it: mostly the higher numbers, which are given out first.
  std::sort(nobodys.begin(), nobodys.end(), std::greater<>());
  if (keep) return PutInQuarantine({.kept = std::move(nobodys)});
  return PutInQuarantine({.blocks = std::move(nobodys)});
}

void BlockLedger::SetKeptMax(int32_t blocks_max) {
  kept_max_ = std::max(blocks_max, 0);
  if (kept_.count() > kept_max_) FreeOldestKept(kept_.count() - kept_max_);
}

std::vector<BlockLedger::KeptBlock> BlockLedger::ListKept(int32_t first, int32_t count_max) const {
  std::vector<KeptBlock> kept;
  for (const int32_t block : kept_.List(first, count_max)) {
    kept.push_back({.block = block,
                    .generation = GenerationOf(block),
                    .tag = records_.tags == nullptr ? 0 : records_.tags[block]});
  }
  return kept;
}

void BlockLedger::ReleaseQuarantine(int64_t quarantine) {
  const auto found = quarantines_.find(quarantine);
  if (found == quarantines_.end()) return;
  Quarantine ended = std::move(found->second);
  quarantines_.erase(found);
  quarantined_ -= static_cast<int32_t>(ended.blocks.size() + ended.kept.size());
  for (const int32_t block : ended.kept) kept_.Add(block);
  SetKeptMax(kept_max_);
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

int32_t BlockLedger::Obtainable() const {
  return free_count() + (kept_protected_ ? 0 : kept_.count());
}

int32_t BlockLedger::AvailableTo(Holder holder) const {
  return Obtainable() - reserved_ + ReservedFor(holder);
}

void BlockLedger::MakeFree(int32_t count) {
  if (count > free_count()) FreeOldestKept(count - free_count());
}

// They went through quarantine when they were kept: nothing that is enqueued reads them.
void BlockLedger::FreeOldestKept(int32_t count) {
  if (kept_protected_) return;
  std::vector<int32_t> blocks = kept_.TakeOldest(count);
  for (const int32_t block : blocks) Record(block, false);
  places_.Put(std::move(blocks));
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
  KVTIER_RETURN_IF_ERROR(CheckRange(shared));
  for (const int32_t block : shared) {
    const bool is_kept = kept_.Contains(block);
    if (holders_of_[block] == 0 && !is_kept) return NotAssigned(block);
    // Nobody is there to ask whose rows they are.
    if (is_kept && shared_generations.empty()) {
      return FieldInvalid("shared_generations", "empty", "one for each block, as some are kept");
    }
  }
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
                                  {"used", absl::StrCat(used_count() + reserved_)},
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
  return std::atomic_ref<int32_t>(records_.generations[block]).load(std::memory_order_relaxed);
}

int32_t BlockLedger::RaiseGeneration(int32_t block) {
  const int32_t now = GenerationOf(block);
  // 1 is first: 0 is what rows that were never backed up carry.
  const int32_t next = now < 0 || now == std::numeric_limits<int32_t>::max() ? 1 : now + 1;
  std::atomic_ref<int32_t>(records_.generations[block]).store(next, std::memory_order_release);
  return next;
}

// Release: whoever finds a block marked held finds its generation and tag, too.
void BlockLedger::Record(int32_t block, bool held) {
  if (records_.held == nullptr || !recording_) return;
  std::atomic_ref<uint8_t>(records_.held[block]).store(held ? 1 : 0, std::memory_order_release);
}

BlockLedger::Released BlockLedger::PutInQuarantine(Quarantine what) {
  if (what.blocks.empty() && what.kept.empty()) return {};
  for (const int32_t block : what.blocks) Record(block, false);
  Released released;
  released.quarantine = ++last_quarantine_;
  released.block_count = static_cast<int32_t>(what.blocks.size() + what.kept.size());
  quarantined_ += released.block_count;
  quarantines_[released.quarantine] = std::move(what);
  return released;
}

}  // namespace kvtier
