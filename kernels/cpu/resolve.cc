#include "kernels/cpu/resolve.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace kvtier::cpu {
namespace {

// Entries of the LRU order on their way through the walk: the 16 bits as they were read, and what
// is known about them.
constexpr uint32_t kEntryMask = 0xffff;
constexpr uint32_t kCorrupt = 1u << 16;  // no hot slot, or one that came before in the order
constexpr uint32_t kOwned = 1u << 17;    // its hot slot has an owner

constexpr int32_t kMaskedId = 0;

// ResolveSlot() of layout.h without its two divisions, for the usual block size.
struct SlotResolver {
  const int32_t* blocks;
  int32_t max_blocks;
  int32_t block_size;
  int32_t block_shift;  // -1: block_size is no power of two
  int32_t position_end;

  SlotResolver(const SwapInParams& p, int32_t region)
      : blocks(p.block_table == nullptr ? nullptr
                                        : p.block_table + int64_t{region} * p.shape.max_blocks),
        max_blocks(p.shape.max_blocks),
        block_size(p.shape.block_size),
        block_shift(block_size > 0 && std::has_single_bit(static_cast<uint32_t>(block_size))
                        ? std::countr_zero(static_cast<uint32_t>(block_size))
                        : -1),
        position_end(p.sequence_lengths == nullptr ? kNone : p.sequence_lengths[region]) {}

  int32_t operator()(int32_t value) const {
    if (blocks == nullptr) return value;
    if (block_shift < 0) return ResolveSlot(blocks, max_blocks, block_size, position_end, value);
    if (value < 0 || (position_end >= 0 && value >= position_end)) return kNone;
    const int32_t index = value >> block_shift;
    if (index >= max_blocks) return kNone;
    const int32_t block = blocks[index];
    if (block < 0) return kNone;
    const int64_t slot = (int64_t{block} << block_shift) + (value & (block_size - 1));
    return slot > INT32_MAX ? kNone : static_cast<int32_t>(slot);
  }
};

class Resolver {
 public:
  Resolver(const SwapInParams& params, int32_t region, const int32_t* rows, int32_t row_count,
           Workspace* workspace)
      : p_(params),
        w_(*workspace),
        region_(region),
        rows_(rows),
        row_count_(row_count),
        top_k_(params.shape.top_k),
        hot_size_(params.shape.hot_size),
        base_(region * params.shape.region_stride),
        owner_(params.state.owner + int64_t{region} * params.shape.hot_size),
        lru_(params.state.lru + int64_t{region} * params.shape.hot_size),
        first_lookup_(row_count + 1) {}

  int32_t Run(RowCopy* copies) {
    Reserve();
    ReadOrder();
    InsertNewest();
    Classify();
    Walk();
    CollectMisses();
    const int32_t copy_count = Place(copies);
    WriteOrder();
    Emit();
    return copy_count;
  }

 private:
  using Owner = std::atomic_ref<int32_t>;

  void Reserve() {
    const int64_t positions = int64_t{row_count_} * top_k_;
    Grow(w_.ids, positions);
    const int64_t ids = positions + first_lookup_;
    Grow(w_.answers, ids);
    Grow(w_.slots, ids);
    Grow(w_.columns, ids);
    // One more: the lists below are written one element past what they keep.
    Grow(w_.misses, ids + 1);
    Grow(w_.id_ends, row_count_);
    Grow(w_.order, hot_size_);
    Grow(w_.evictable, int64_t{hot_size_} + 1);
    Grow(w_.hits, int64_t{hot_size_} + 1);
    Grow(w_.met, hot_size_);
    if (++w_.met_stamp == 0) {
      std::fill(w_.met.begin(), w_.met.end(), uint16_t{0});
      w_.met_stamp = 1;
    }
    w_.table.Clear(static_cast<int32_t>(std::min<int64_t>(ids, INT32_MAX)));
  }

  // A private, checked copy of the order: each entry is read once, and from then on only this
  // copy is used.
  void ReadOrder() {
    uint16_t* const met = w_.met.data();
    const uint16_t stamp = w_.met_stamp;
    for (int32_t i = 0; i < hot_size_; ++i) {
      const auto entry = static_cast<uint16_t>(
          std::atomic_ref<int16_t>(lru_[i]).load(std::memory_order_relaxed));
      uint32_t corrupt = kCorrupt;
      if (entry < hot_size_) [[likely]] {  // a negative one became 32768 or more
        corrupt = met[entry] == stamp ? kCorrupt : 0;
        met[entry] = stamp;
      }
      w_.order[i] = entry | corrupt;
    }
  }

  // Newest tokens are in the table like lookups; their ids tell them apart.
  void InsertNewest() {
    w_.answers[kMaskedId] = kNone;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int32_t id = 1 + rank;
      w_.answers[id] = hot_size_ + rank;
      const int32_t slot = p_.newest_slot == nullptr ? kNone : p_.newest_slot[rows_[rank]];
      if (slot >= 0) w_.table.FindOrInsert(slot, id);
    }
  }

  void Classify() {
    const SlotResolver resolve(p_, region_);
    int32_t next_id = first_lookup_;
    int64_t invalid = 0, newest = 0, duplicates = 0;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int32_t* topk = p_.topk + int64_t{rows_[rank]} * top_k_;
      int32_t* ids = w_.ids.data() + int64_t{rank} * top_k_;
      for (int32_t column = 0; column < top_k_; ++column) {
        const int32_t slot = resolve(topk[column]);
        if (slot < 0) {
          ids[column] = kMaskedId;
          ++invalid;
          continue;
        }
        const int32_t id = w_.table.FindOrInsert(slot, next_id);
        ids[column] = id;
        if (id == next_id) [[likely]] {
          w_.slots[id] = slot;
          w_.columns[id] = column;
          w_.answers[id] = kNone;
          ++next_id;
        } else if (id < first_lookup_) {
          ++newest;
        } else {
          ++duplicates;
        }
      }
      w_.id_ends[rank] = next_id;
    }
    id_end_ = next_id;
    w_.counts[Counter::kInvalid] += invalid;
    w_.counts[Counter::kNewest] += newest;
    w_.counts[Counter::kDuplicates] += duplicates;
  }

  // Half of the hot slots are hits and half are not, in no order a branch predictor could learn:
  // so both lists are written at every step, and only one of them moves on.
  void Walk() {
    uint32_t* hits = w_.hits.data();
    uint32_t* evictable = w_.evictable.data();
    int32_t* const answers = w_.answers.data();
    for (int32_t i = 0; i < hot_size_; ++i) {
      const uint32_t entry = w_.order[i];
      if (entry & kCorrupt) [[unlikely]] {
        *evictable++ = entry;
        continue;
      }
      Owner shared(owner_[entry]);
      int32_t owner = shared.load(std::memory_order_relaxed);
      int32_t id = w_.table.Find(owner);
      if (id != LookupTable::kAbsent && id < first_lookup_) [[unlikely]] {
        shared.store(kNone, std::memory_order_relaxed);  // the newest row is being rewritten
        owner = kNone;
        id = LookupTable::kAbsent;
      }
      const int32_t answer = answers[id];
      const bool hit = (id != LookupTable::kAbsent) & (answer == kNone);
      answers[id] = hit ? static_cast<int32_t>(entry) : answer;
      *hits = entry;
      *evictable = entry | (owner >= 0 ? kOwned : 0);
      hits += hit;
      evictable += !hit;
    }
    hit_count_ = static_cast<int32_t>(hits - w_.hits.data());
    evictable_count_ = static_cast<int32_t>(evictable - w_.evictable.data());
    w_.counts[Counter::kHits] += hit_count_;
  }

  void CollectMisses() {
    int32_t* misses = w_.misses.data();
    for (int32_t id = first_lookup_; id < id_end_; ++id) {
      *misses = id;
      misses += w_.answers[id] == kNone;
    }
    miss_count_ = static_cast<int32_t>(misses - w_.misses.data());
    w_.counts[Counter::kMisses] += miss_count_;
    drawn_ = std::min(miss_count_, evictable_count_);
    if (p_.tracking.backed_generation == nullptr) return;
    for (int32_t m = 0; m < drawn_; ++m) {
      const int32_t slot = w_.slots[w_.misses[m]];
      if (slot < p_.shape.slot_count) __builtin_prefetch(p_.tracking.backed_generation + slot);
    }
  }

  // Where the bytes of `slot` come from: itself, or kNone for zeros.
  int32_t SourceOf(int32_t slot) {
    if (slot >= p_.shape.slot_count) {
      ++w_.counts[Counter::kUnsourced];
      return kNone;
    }
    if (p_.tracking.backed_generation == nullptr) return slot;
    // Acquire: whoever published the generation wrote the bytes before.
    const int32_t backed = std::atomic_ref<int32_t>(p_.tracking.backed_generation[slot])
                               .load(std::memory_order_acquire);
    const int32_t block = slot / p_.shape.block_size;
    const int32_t current =
        std::atomic_ref<int32_t>(const_cast<int32_t&>(p_.tracking.block_generation[block]))
            .load(std::memory_order_acquire);
    if (backed == current) return slot;
    ++w_.counts[Counter::kUnbackedReads];
    return kNone;
  }

  int32_t Place(RowCopy* copies) {
    int32_t copy_count = 0, m = 0;
    int64_t copied = 0, evictions = 0;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int64_t row = int64_t{rows_[rank]} * top_k_;
      int32_t* miss_mask = p_.miss_mask == nullptr ? nullptr : p_.miss_mask + row;
      if (miss_mask != nullptr) std::fill_n(miss_mask, top_k_, 0);
      const int32_t first_miss = m;
      for (; m < miss_count_ && w_.misses[m] < w_.id_ends[rank]; ++m) {
        const int32_t id = w_.misses[m];
        RowCopy copy = {kNone, kNone};
        if (m < drawn_ && !(w_.evictable[m] & kCorrupt)) [[likely]] {
          const uint32_t entry = w_.evictable[m] & kEntryMask;
          copy = {SourceOf(w_.slots[id]), base_ + static_cast<int32_t>(entry)};
          evictions += (w_.evictable[m] & kOwned) != 0;
          w_.answers[id] = static_cast<int32_t>(entry);
          Owner(owner_[entry]).store(copy.slot, std::memory_order_relaxed);
          if (copy.slot >= 0) {
            ++copied;
            if (miss_mask != nullptr) miss_mask[w_.columns[id]] = 1;
          }
          copies[copy_count++] = copy;
        } else {
          ++w_.counts[Counter::kUnplaced];
          if (m < drawn_) ++w_.counts[Counter::kStateRepairs];
        }
        if (p_.plan.counts != nullptr) {
          p_.plan.slots[row + m - first_miss] = copy.slot;
          p_.plan.hot_rows[row + m - first_miss] = copy.hot_row;
        }
      }
      if (p_.plan.counts != nullptr) p_.plan.counts[rows_[rank]] = m - first_miss;
    }
    w_.counts[Counter::kRowsCopied] += copied;
    w_.counts[Counter::kEvictions] += evictions;
    return copy_count;
  }

  void WriteOrder() {
    int16_t* next = lru_;
    const auto append = [&next](const uint32_t* from, const uint32_t* end) {
      while (from != end) *next++ = static_cast<int16_t>(*from++ & kEntryMask);
    };
    const uint32_t* const evictable = w_.evictable.data();
    append(evictable + drawn_, evictable + evictable_count_);
    append(evictable, evictable + drawn_);
    append(w_.hits.data(), w_.hits.data() + hit_count_);
  }

  void Emit() {
    int32_t* const answers = w_.answers.data();
    for (int32_t id = 1; id < id_end_; ++id) {
      answers[id] = answers[id] == kNone ? kNone : base_ + answers[id];
    }
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int32_t* ids = w_.ids.data() + int64_t{rank} * top_k_;
      int32_t* hot_indices = p_.hot_indices + int64_t{rows_[rank]} * top_k_;
      int32_t valid = 0;
      for (int32_t column = 0; column < top_k_; ++column) {
        const int32_t answer = answers[ids[column]];
        hot_indices[column] = answer;
        valid += answer >= 0;
      }
      if (p_.valid_counts != nullptr) p_.valid_counts[rows_[rank]] = valid;
    }
  }

  const SwapInParams& p_;
  Workspace& w_;
  const int32_t region_;
  const int32_t* const rows_;
  const int32_t row_count_;
  const int32_t top_k_;
  const int32_t hot_size_;
  const int32_t base_;
  int32_t* const owner_;
  int16_t* const lru_;
  const int32_t first_lookup_;  // the id of the first lookup

  int32_t id_end_ = 0;
  int32_t hit_count_ = 0;
  int32_t evictable_count_ = 0;
  int32_t miss_count_ = 0;
  int32_t drawn_ = 0;  // evictable entries that misses drew
};

}  // namespace

int32_t ResolveRequest(const SwapInParams& params, int32_t region, const int32_t* rows,
                       int32_t row_count, Workspace* workspace, RowCopy* copies) {
  return Resolver(params, region, rows, row_count, workspace).Run(copies);
}

}  // namespace kvtier::cpu
