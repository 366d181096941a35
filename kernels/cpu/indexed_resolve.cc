#include "kernels/cpu/indexed_resolve.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "kernels/cpu/age_scores.h"
#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/keep_rows.h"
#include "kernels/cpu/owner_index.h"
#include "kernels/cpu/row_slots.h"
#include "kernels/cpu/split_order.h"
#include "kernels/eviction.h"
#include "kernels/region_index.h"

namespace kvtier::cpu {
namespace {

// The phases are short loops, one after the other: none waits for the memory of the next, and the
// processor has many iterations of each under way.
class IndexedResolver {
 public:
  IndexedResolver(const SwapInParams& params, int32_t region, const int32_t* rows,
                  int32_t row_count, Workspace* workspace)
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
        index_(params.state.index + int64_t{region} * RegionIndexLength(params.shape.hot_size),
               owner_, params.shape.hot_size) {}

  int32_t Run(RowCopy* copies) {
    if (!index_.Sync()) return kNotIndexed;
    HideNewest();
    std::fill_n(w_.notes.hits.data(), hot_size_, uint8_t{0});
    for (int32_t rank = 0; rank < row_count_; ++rank) FindRow(rank);
    ListMisses();
    std::memcpy(w_.entries.data(), lru_, hot_size_ * sizeof(int16_t));
    hit_count_ = SplitOrder(w_.entries.data(), hot_size_, &w_.notes, w_.hit_slots.data(),
                            w_.other_slots.data());
    if (hit_count_ < 0) {
      index_.Finish();
      return kNotIndexed;
    }
    DropNewest();
    Count();
    if (score_ != nullptr) {
      // Only steps and resets of this region write its scores, one at a time: no atomics.
      AgeAllAndHits(w_.notes.hits.data(), score_, hot_size_);
      ChooseVictims();
    }
    const int32_t copy_count = Place(copies);
    WriteOrder();
    Answer();
    index_.Finish();
    return copy_count;
  }

 private:
  using Owner = std::atomic_ref<int32_t>;

  // Newest rows are being rewritten: nobody finds the copies of what was there before.
  void HideNewest() {
    if (p_.newest_slot == nullptr) return;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int32_t slot = p_.newest_slot[rows_[rank]];
      w_.newest[rank] = slot;
      if (slot < 0) continue;
      const int32_t hot_slot = index_.Find(slot);
      if (hot_slot == kNone) continue;
      index_.SetOwner(hot_slot, kNone);
      w_.dropped[dropped_count_++] = hot_slot;
    }
  }

  // Positions whose slot is owned by the first hot slot that may; the others are listed.
  void FindRow(int32_t rank) {
    const int32_t top_k = top_k_, begin = rank * top_k;
    const int64_t row = int64_t{rows_[rank]} * top_k;
    int32_t* const slots = w_.ids.data() + begin;
    ResolveSlots(p_, region_, p_.topk + row, top_k, slots);
    const int32_t others = index_.Match(slots, top_k,
                                        {.base = base_,
                                         .first = begin,
                                         .hot_rows = p_.hot_indices + row,
                                         .hits = w_.notes.hits.data(),
                                         .others = w_.unanswered.data() + unanswered_});
    unanswered_ = FindOthers(rank, unanswered_ + others);
  }

  // The note of a hot slot, or one that nobody reads; without a branch.
  static uint16_t NoteOf(int32_t hot_slot, int32_t is_miss) {
    return static_cast<uint16_t>(hot_slot | -is_miss);
  }

  // The rest of the search. Returns the end of the list of positions that are no hits. Whether the
  // second place has it is anybody's guess, so that there is no branch for it.
  int32_t FindOthers(int32_t rank, int32_t end) {
    const int32_t begin = rank * top_k_;
    int32_t* const hot_indices = p_.hot_indices + int64_t{rows_[rank]} * top_k_;
    int32_t* const list = w_.unanswered.data();
    uint8_t* const hits = w_.notes.hits.data();
    int32_t* const rare = w_.miss_ids.data();
    int32_t kept = unanswered_, rare_count = 0;
    for (int32_t i = unanswered_; i < end; ++i) {
      const int32_t position = list[i];
      const OwnerIndex::Second second = index_.SearchSecond(w_.ids[position]);
      hits[NoteOf(second.hot_slot, second.is_missing)] = 1;
      hot_indices[position - begin] = base_ + second.hot_slot;
      rare[rare_count] = position;
      rare_count += second.may_go_on;
      list[kept] = position;
      kept += second.is_missing;
    }
    int32_t found = 0;
    for (int32_t i = 0; i < rare_count; ++i) {
      const int32_t hot_slot = index_.FindAgain(w_.ids[rare[i]]);
      if (hot_slot == kNone) continue;
      hits[hot_slot] = 1;
      hot_indices[rare[i] - begin] = base_ + hot_slot;
      w_.ids[rare[i]] = kAnswered;
      ++found;
    }
    if (found > 0) kept = RemoveAnswered(kept);
    w_.valid[rank] = top_k_ - (kept - unanswered_);
    w_.id_ends[rank] = kept;
    return kept;
  }

  // From the end of the list, whose new end is returned.
  int32_t RemoveAnswered(int32_t end) {
    int32_t* const list = w_.unanswered.data();
    const int32_t* const slots = w_.ids.data();
    int32_t kept = unanswered_;
    for (int32_t i = kept; i < end; ++i) {
      list[kept] = list[i];
      kept += slots[list[i]] != kAnswered;
    }
    return kept;
  }

  // What the positions that are no hits ask for: an id each, as in Workspace.
  void ListMisses() {
    const LookupTable::View table = w_.table.Clear(row_count_ + unanswered_);
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      w_.answers[1 + rank] = hot_size_ + rank;
      if (p_.newest_slot != nullptr && w_.newest[rank] >= 0) {
        table.FindOrInsert(w_.newest[rank], 1 + rank);
      }
    }
    const int32_t first_miss = 1 + row_count_;
    int32_t next_id = first_miss, prefetch_left = p_.layer_count > 0 ? kPrefetchBytesMax : 0;
    for (int32_t i = 0; i < unanswered_; ++i) {
      const int32_t slot = w_.ids[w_.unanswered[i]], position = w_.unanswered[i];
      int32_t id = kMaskedId;
      if (slot < 0) {
        ++invalid_;
      } else if (id = table.FindOrInsert(slot, next_id); id == next_id) {
        w_.lookups[next_id++] = {slot, position};
        if (slot < p_.shape.slot_count) prefetch_left -= PrefetchMiss(p_, slot, prefetch_left);
      } else {
        newest_ += id < first_miss;
      }
      w_.miss_ids[i] = id;
    }
    miss_count_ = next_id - first_miss;
  }

  void DropNewest() {
    for (int32_t i = 0; i < dropped_count_; ++i) {
      const int32_t hot_slot = w_.dropped[i];
      Owner(owner_[hot_slot]).store(kNone, std::memory_order_relaxed);
      if (score_ != nullptr) score_[hot_slot] = kNoScore;
    }
    for (int32_t rank = 0; kept_ != nullptr && rank < row_count_; ++rank) {
      const int32_t slot = p_.newest_slot == nullptr ? kNone : w_.newest[rank];
      if (slot >= 0) DropKept(p_.shape, kept_, slot);
    }
  }

  void Count() {
    other_count_ = hot_size_ - hit_count_;
    drawn_ = std::min(miss_count_, other_count_);
    w_.counts[Counter::kHits] += hit_count_;
    w_.counts[Counter::kMisses] += miss_count_;
    w_.counts[Counter::kInvalid] += invalid_;
    w_.counts[Counter::kNewest] += newest_;
    w_.counts[Counter::kDuplicates] +=
        int64_t{row_count_} * top_k_ - invalid_ - newest_ - hit_count_ - miss_count_;
  }

  // Puts the others with the smallest scores in front, as many as misses draw, of equal ones the
  // oldest. Both parts stay in order.
  void ChooseVictims() {
    if (drawn_ == 0) return;
    uint16_t* const others = w_.other_slots.data();
    uint8_t* const scores = w_.scores.data();
    // Four of them, because equal scores follow each other and each addition waits for the last.
    std::array<std::array<int32_t, 256>, 4> counts = {};
    for (int32_t i = 0, end = other_count_; i < end; ++i) {
      scores[i] = score_[others[i]];
      ++counts[i % 4][scores[i]];
    }
    const auto with_score = [&counts](int32_t s) {
      return counts[0][s] + counts[1][s] + counts[2][s] + counts[3][s];
    };
    int32_t limit = 0;  // all below it are drawn, and the oldest `at_limit` of those at it
    int32_t at_limit = drawn_;
    while (at_limit > with_score(limit)) at_limit -= with_score(limit++);
    int32_t cut = 0;  // one past the last of those
    while (at_limit > 0) at_limit -= scores[cut++] == limit;
    // Each goes to both parts, and one of them goes on: no branch to be wrong about.
    uint16_t* victims = others;
    uint16_t* rest = w_.entries.data();
    const auto part = [&](int32_t begin, int32_t end, int32_t score_end) {
      for (int32_t i = begin; i < end; ++i) {
        const uint16_t hot_slot = others[i];
        const bool is_victim = scores[i] < score_end;
        *victims = hot_slot;
        victims += is_victim;
        *rest = hot_slot;
        rest += !is_victim;
      }
    };
    part(0, cut, limit + 1);
    part(cut, other_count_, limit);
    std::copy(w_.entries.data(), rest, victims);
  }

  int32_t Place(RowCopy* copies) {
    int32_t copy_count = 0, m = 0;
    int64_t copied = 0, evictions = 0;
    const int32_t first_miss = 1 + row_count_;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      const int64_t row = int64_t{rows_[rank]} * top_k_;
      int32_t* miss_mask = p_.miss_mask == nullptr ? nullptr : p_.miss_mask + row;
      if (miss_mask != nullptr) std::fill_n(miss_mask, top_k_, 0);
      const int32_t row_begin = m, position_begin = rank * top_k_;
      for (; m < miss_count_ && w_.lookups[first_miss + m].column < position_begin + top_k_; ++m) {
        const Lookup& lookup = w_.lookups[first_miss + m];
        RowCopy copy = {kNone, kNone};
        if (m < drawn_) [[likely]] {
          const int32_t hot_slot = w_.other_slots[m];
          const int32_t slot = SourceOf(p_, lookup.slot, &w_.counts);
          copy = {slot, base_ + hot_slot};
          w_.answers[first_miss + m] = hot_slot;
          const Owner owner(owner_[hot_slot]);
          evictions += owner.load(std::memory_order_relaxed) >= 0;
          owner.store(slot, std::memory_order_relaxed);
          index_.SetOwner(hot_slot, slot);
          if (score_ != nullptr) score_[hot_slot] = slot < 0 ? kNoScore : kMissScore;
          if (slot >= 0) {
            ++copied;
            copy.slot = KeptOr(p_.shape, kept_, region_, slot, &w_.counts);
            if (miss_mask != nullptr) miss_mask[lookup.column - position_begin] = 1;
          }
          copies[copy_count++] = copy;
        } else {
          w_.answers[first_miss + m] = kNone;
          ++w_.counts[Counter::kUnplaced];
        }
        if (p_.plan.counts != nullptr) {
          p_.plan.slots[row + m - row_begin] = copy.slot;
          p_.plan.hot_rows[row + m - row_begin] = copy.hot_row;
        }
      }
      if (p_.plan.counts != nullptr) p_.plan.counts[rows_[rank]] = m - row_begin;
    }
    w_.counts[Counter::kRowsCopied] += copied;
    w_.counts[Counter::kEvictions] += evictions;
    return copy_count;
  }

  void WriteOrder() {
    int16_t* next = lru_;
    const auto append = [&next](const uint16_t* from, int32_t count) {
      std::memcpy(next, from, count * sizeof(int16_t));
      next += count;
    };
    append(w_.other_slots.data() + drawn_, other_count_ - drawn_);
    append(w_.other_slots.data(), drawn_);
    append(w_.hit_slots.data(), hit_count_);
  }

  // The hot rows of the positions that were no hits.
  void Answer() {
    w_.answers[kMaskedId] = kNone;
    int32_t i = 0;
    for (int32_t rank = 0; rank < row_count_; ++rank) {
      int32_t* const hot_indices = p_.hot_indices + int64_t{rows_[rank]} * top_k_;
      for (; i < w_.id_ends[rank]; ++i) {
        const int32_t hot_slot = w_.answers[w_.miss_ids[i]];
        hot_indices[w_.unanswered[i] - rank * top_k_] =
            hot_slot == kNone ? kNone : base_ + hot_slot;
        w_.valid[rank] += hot_slot != kNone;
      }
      if (p_.valid_counts != nullptr) p_.valid_counts[rows_[rank]] = w_.valid[rank];
    }
  }

  static constexpr int32_t kMaskedId = 0;
  static constexpr int32_t kAnswered = -3;  // in place of a slot: the position's hot slot is known

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
  uint8_t* const score_;  // null: kLru
  int32_t* const kept_;   // null: no row is kept
  OwnerIndex index_;

  int32_t dropped_count_ = 0;
  int32_t unanswered_ = 0;  // positions that are no hits
  int32_t invalid_ = 0;     // of those: masked
  int32_t newest_ = 0;      // of those: newest tokens
  int32_t hit_count_ = 0;
  int32_t other_count_ = 0;
  int32_t miss_count_ = 0;
  int32_t drawn_ = 0;  // other hot slots that misses drew
};

}  // namespace

int32_t ResolveIndexed(const SwapInParams& params, int32_t region, const int32_t* rows,
                       int32_t row_count, Workspace* workspace, RowCopy* copies) {
  return IndexedResolver(params, region, rows, row_count, workspace).Run(copies);
}

}  // namespace kvtier::cpu
