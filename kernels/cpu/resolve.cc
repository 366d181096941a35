#include "kernels/cpu/resolve.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "kernels/cpu/age_scores.h"
#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/indexed_resolve.h"
#include "kernels/cpu/keep_rows.h"
#include "kernels/cpu/row_slots.h"
#include "kernels/eviction.h"
#include "kernels/region_index.h"

namespace kvtier::cpu {
namespace {

// Entries of the LRU order on their way through the walk: the 16 bits as they were read, and what
// is known about them.
constexpr uint32_t kEntryMask = 0xffff;
constexpr uint32_t kCorrupt = 1u << 16;  // no hot slot, or one that came before in the order
constexpr uint32_t kOwned = 1u << 17;    // its hot slot has an owner
constexpr int32_t kScoreShift = 24;      // evictables' scores, where there are any

constexpr int32_t kMaskedId = 0;

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
        score_(ScoresOf(params.shape, params.state, region)),
        kept_(KeptOf(params.shape, params.state, region)),
        first_lookup_(row_count + 1) {}

  int32_t Run(RowCopy* copies) {
    Begin();
    ReadOrder();
    InsertNewest();
    Classify();
    Walk();
    CollectMisses();
    if (score_ != nullptr) {
      AgeScores();
      ChooseVictims();
    }
    const int32_t copy_count = Place(copies);
    WriteOrder();
    Emit();
    return copy_count;
  }

 private:
  using Owner = std::atomic_ref<int32_t>;

  void Begin() {
    if (++w_.met_stamp == 0) {
      std::fill(w_.met.begin(), w_.met.end(), uint16_t{0});
      w_.met_stamp = 1;
    }
    table_ = w_.table.Clear(row_count_ * (top_k_ + 1));
  }

  // A private, checked copy of the order: each entry is read once, and from then on only this
  // copy is used.
  void ReadOrder() {
    uint16_t* const met = w_.met.data();
    uint32_t* const order = w_.order.data();
    const uint16_t stamp = w_.met_stamp;
    uint32_t any = 0;
    for (int32_t i = 0, end = hot_size_; i < end; ++i) {
      const auto entry =
          static_cast<uint16_t>(std::atomic_ref<int16_t>(lru_[i]).load(std::memory_order_relaxed));
      uint32_t corrupt = kCorrupt;
      if (entry < end) [[likely]] {  // a negative one became 32768 or more
        corrupt = met[entry] == stamp ? kCorrupt : 0;
        met[entry] = stamp;
      }
      order[i] = entry | corrupt;
      any |= corrupt;
    }
    has_corrupt_ = any != 0;
  }

  // Newest tokens are in the table like lookups; their ids tell them apart.
  void InsertNewest() {
    w_.answers[kMaskedId] = kNone;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int32_t id = 1 + rank;
      w_.answers[id] = hot_size_ + rank;
      const int32_t slot = p_.newest_slot == nullptr ? kNone : p_.newest_slot[rows_[rank]];
      if (slot >= 0) table_.FindOrInsert(slot, id);
      if (slot >= 0 && kept_ != nullptr) DropKept(p_.shape, kept_, slot);
    }
  }

  void Classify() {
    const LookupTable::View table = table_;
    Lookup* const lookups = w_.lookups.data();
    int32_t* const answers = w_.answers.data();
    const int32_t first_lookup = first_lookup_;
    int32_t next_id = first_lookup;
    int64_t invalid = 0, newest = 0, duplicates = 0;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      int32_t* const ids = w_.ids.data() + int64_t{rank} * top_k_;
      ResolveSlots(p_, region_, p_.topk + int64_t{rows_[rank]} * top_k_, top_k_, ids);
      for (int32_t column = 0, end = top_k_; column < end; ++column) {
        const int32_t slot = ids[column];
        int32_t id = kMaskedId;
        if (slot < 0) {
          ++invalid;
        } else if (id = table.FindOrInsert(slot, next_id); id == next_id) [[likely]] {
          lookups[id] = {slot, column};
          answers[id] = kNone;
          ++next_id;
        } else if (id < first_lookup) {
          ++newest;
        } else {
          ++duplicates;
        }
        ids[column] = id;
      }
      w_.id_ends[rank] = next_id;
    }
    id_end_ = next_id;
    w_.counts[Counter::kInvalid] += invalid;
    w_.counts[Counter::kNewest] += newest;
    w_.counts[Counter::kDuplicates] += duplicates;
  }

  // Which of the two lists a hot slot goes to is a branch that predicts well: the order has the
  // slots of the last step, most of them asked for again, behind those that nobody asked for.
  void Walk() {
    const LookupTable::View table = table_;
    const uint32_t* const order = w_.order.data();
    uint32_t* hits = w_.hits.data();
    uint32_t* evictable = w_.evictable.data();
    int32_t* const answers = w_.answers.data();
    int32_t* const owners = owner_;
    for (int32_t i = 0, end = hot_size_; i < end; ++i) {
      const uint32_t entry = order[i];
      if (entry & kCorrupt) [[unlikely]] {
        *evictable++ = entry;
        continue;
      }
      const Owner shared(owners[entry]);
      const int32_t owner = shared.load(std::memory_order_relaxed);
      const int32_t id = table.Find(owner);
      if (id == LookupTable::kAbsent) {
        *evictable++ = entry | (owner >= 0 ? kOwned : 0);
      } else if (id < first_lookup_) {
        shared.store(kNone, std::memory_order_relaxed);  // the newest row is being rewritten
        if (score_ != nullptr) score_[entry] = kNoScore;
        *evictable++ = entry;
      } else if (answers[id] == kNone) [[likely]] {
        answers[id] = static_cast<int32_t>(entry);
        *hits++ = entry;
      } else {
        *evictable++ = entry | kOwned;  // owned twice, which only corruption does
      }
    }
    hit_count_ = static_cast<int32_t>(hits - w_.hits.data());
    evictable_count_ = static_cast<int32_t>(evictable - w_.evictable.data());
    w_.counts[Counter::kHits] += hit_count_;
  }

  void CollectMisses() {
    int32_t* misses = w_.misses.data();
    const int32_t* const answers = w_.answers.data();
    for (int32_t id = first_lookup_, end = id_end_; id < end; ++id) {
      if (answers[id] == kNone) *misses++ = id;
    }
    miss_count_ = static_cast<int32_t>(misses - w_.misses.data());
    w_.counts[Counter::kMisses] += miss_count_;
    drawn_ = std::min(miss_count_, evictable_count_);
    int32_t prefetch_left = p_.layer_count > 0 ? kPrefetchBytesMax : 0;
    for (int32_t m = 0; m < drawn_; ++m) {
      const int32_t slot = w_.lookups[w_.misses[m]].slot;
      if (slot < p_.shape.slot_count) prefetch_left -= PrefetchMiss(p_, slot, prefetch_left);
    }
  }

  // All scores age, hits rise. Only steps and resets of this region write its scores, one at a
  // time, so that they need no atomics.
  void AgeScores() {
    if (!has_corrupt_) [[likely]] {  // each hot slot is in the order once
      AgeAll(score_, hot_size_);
    } else {
      for (int32_t i = 0; i < hot_size_; ++i) {
        if (w_.order[i] & kCorrupt) continue;
        uint8_t& score = score_[w_.order[i]];
        score = AgedScore(score);
      }
    }
    for (int32_t i = 0; i < hit_count_; ++i) {
      uint8_t& score = score_[w_.hits[i] & kEntryMask];
      score = HitScore(score);
    }
  }

  // Puts the evictables with the smallest scores in front, as many as misses draw, of equal ones
  // the oldest. Both parts stay in the order of the walk.
  void ChooseVictims() {
    if (drawn_ == 0) return;
    uint32_t* const evictable = w_.evictable.data();
    // Two of them, because equal scores follow each other and each addition waits for the last.
    std::array<std::array<int32_t, 256>, 2> counts = {};
    for (int32_t i = 0, end = evictable_count_; i < end; ++i) {
      const uint32_t entry = evictable[i];
      const uint32_t score = entry & kCorrupt ? kUnusableScore : score_[entry & kEntryMask];
      evictable[i] = entry | score << kScoreShift;
      ++counts[i % 2][score];
    }
    const auto with_score = [&counts](uint32_t s) { return counts[0][s] + counts[1][s]; };
    uint32_t limit = 0;  // all below it are drawn, and the oldest `at_limit` of those at it
    int32_t at_limit = drawn_;
    while (at_limit > with_score(limit)) at_limit -= with_score(limit++);
    // Each goes to both parts, and one of them goes on: no branch to be wrong about.
    uint32_t* victims = evictable;
    uint32_t* others = w_.others.data();
    for (int32_t i = 0, end = evictable_count_; i < end; ++i) {
      const uint32_t entry = evictable[i];
      const uint32_t score = entry >> kScoreShift;
      const bool is_at_limit = (score == limit) & (at_limit > 0);
      const bool is_victim = (score < limit) | is_at_limit;
      at_limit -= is_at_limit;
      *victims = entry;
      victims += is_victim;
      *others = entry;
      others += !is_victim;
    }
    std::copy(w_.others.data(), others, victims);
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
          const int32_t slot = SourceOf(p_, w_.lookups[id].slot, &w_.counts);
          copy = {slot, base_ + static_cast<int32_t>(entry)};
          evictions += (w_.evictable[m] & kOwned) != 0;
          w_.answers[id] = static_cast<int32_t>(entry);
          Owner(owner_[entry]).store(slot, std::memory_order_relaxed);
          if (score_ != nullptr) score_[entry] = slot < 0 ? kNoScore : kMissScore;
          if (slot >= 0) {
            ++copied;
            copy.slot = KeptOr(p_.shape, kept_, region_, slot, &w_.counts);
            if (miss_mask != nullptr) miss_mask[w_.lookups[id].column] = 1;
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
  uint8_t* const score_;        // null: kLru
  int32_t* const kept_;         // null: no row is kept
  const int32_t first_lookup_;  // the id of the first lookup

  LookupTable::View table_;
  bool has_corrupt_ = false;  // the order has an entry that is of no use
  int32_t id_end_ = 0;
  int32_t hit_count_ = 0;
  int32_t evictable_count_ = 0;
  int32_t miss_count_ = 0;
  int32_t drawn_ = 0;  // evictable entries that misses drew
};

}  // namespace

int32_t ResolveRequest(const SwapInParams& params, int32_t region, const int32_t* rows,
                       int32_t row_count, Workspace* workspace, RowCopy* copies) {
  if (params.state.index != nullptr && RegionIndexLength(params.shape.hot_size) > 0) {
    const int32_t copy_count = ResolveIndexed(params, region, rows, row_count, workspace, copies);
    if (copy_count != kNotIndexed) return copy_count;
  }
  return Resolver(params, region, rows, row_count, workspace).Run(copies);
}

}  // namespace kvtier::cpu
