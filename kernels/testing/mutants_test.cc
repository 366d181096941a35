// Do the checks notice? A step written a third time, with a switch for each mistake that somebody
// has made before: without a mistake it passes, with one it must be caught.
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "kernels/kept_rows.h"
#include "kernels/stats_block.h"
#include "kernels/testing/random_steps.h"
#include "kernels/testing/step_checker.h"

namespace kvtier::testing {
namespace {

enum class Mistake {
  kNone,
  kLastDuplicateWins,    // the hash keeps the last index of an id; the others become misses
  kMissesByDifference,   // top_k - hits - resolved, which a repeated id makes wrong
  kNewestEvictedFirst,   // misses take the youngest slots
  kHitsBeforeMisses,     // in the new order
  kNoDrop,               // copies of the newest row stay owned
  kNewestBecomesLookup,  // the newest row is read from the host
  kPaddingKeepsOutputs,  // rows that take no part are not written
  kMaskedKeepsOutputs,   // neither are positions that name nothing
  kClaimsWithoutSource,  // a slot past the pool keeps the old bytes under its name
  kLastBytesMissing,     // the last 16 bytes of a row are not copied
  kWrongRegion,          // followers' bytes go to region 0
  kCountsPositions,      // hits are counted by position
  // With scores, these as well.
  kVictimsByAge,         // scores are kept, and misses take the oldest
  kVictimsInScoreOrder,  // the cheapest slot goes to the first miss
  kYoungestOfEqual,      // of equal scores the youngest goes
  kNoAgeing,             // what was asked for once stays dear
  kHitsAreNotCounted,    // every hit is like the first one
  kDroppedKeepsScore,    // the rewritten row's hot slot stays dear
  kUnsourcedIsDear,      // and so does one that holds zeros
  kKeepsRewritten,       // a kept row outlives its slot's rewriting
  kKeptFromNewest,       // the row of the newest token is copied
  kKeptIsNoSource,       // kept rows are not used
  kKeptCrossesPcie,      // and their bytes are counted as if they had come from the host
};

constexpr Mistake kMistakes[] = {Mistake::kLastDuplicateWins,
                                 Mistake::kMissesByDifference,
                                 Mistake::kNewestEvictedFirst,
                                 Mistake::kHitsBeforeMisses,
                                 Mistake::kNoDrop,
                                 Mistake::kNewestBecomesLookup,
                                 Mistake::kPaddingKeepsOutputs,
                                 Mistake::kMaskedKeepsOutputs,
                                 Mistake::kClaimsWithoutSource,
                                 Mistake::kLastBytesMissing,
                                 Mistake::kWrongRegion,
                                 Mistake::kCountsPositions};

constexpr Mistake kScoreMistakes[] = {
    Mistake::kVictimsByAge,    Mistake::kVictimsInScoreOrder, Mistake::kYoungestOfEqual,
    Mistake::kNoAgeing,        Mistake::kHitsAreNotCounted,   Mistake::kDroppedKeepsScore,
    Mistake::kUnsourcedIsDear, Mistake::kKeepsRewritten,      Mistake::kKeptFromNewest,
    Mistake::kKeptIsNoSource,  Mistake::kKeptCrossesPcie};

// One row of one request; slots, not positions; contiguous rows; no tracking.
class MutantRow {
 public:
  MutantRow(const SwapInParams& p, int32_t row, Mistake mistake, Counts* counts)
      : p_(p),
        row_(row),
        region_(p.row_to_request[row]),
        base_(region_ * p.shape.region_stride),
        k_(p.shape.top_k),
        mistake_(mistake),
        owner_(p.state.owner + int64_t{region_} * p.shape.hot_size),
        lru_(p.state.lru + int64_t{region_} * p.shape.hot_size),
        score_(ScoresOf(p.shape, p.state, region_)),
        kept_(KeptOf(p.shape, p.state, region_)),
        out_(p.hot_indices + int64_t{row} * k_),
        counts_(*counts) {}

  void Run() {
    const bool drops = kept_ != nullptr && mistake_ != Mistake::kKeepsRewritten;
    if (drops && *kept_ >= 0 && *kept_ == p_.newest_slot[row_]) *kept_ = -1;
    std::map<int32_t, int32_t> last;  // id -> the index that stands for it
    std::vector<int32_t> lookups;     // indices that want a slot, in order
    int32_t resolved = 0;
    for (int32_t i = 0; i < k_; ++i) {
      const int32_t slot = SlotAt(i);
      if (slot < 0) {
        if (mistake_ != Mistake::kMaskedKeepsOutputs) out_[i] = -1;
        ++counts_[Counter::kInvalid];
        ++resolved;
      } else if (slot == p_.newest_slot[row_] && mistake_ != Mistake::kNewestBecomesLookup) {
        out_[i] = base_ + p_.shape.hot_size;
        ++counts_[Counter::kNewest];
        ++resolved;
      } else if (mistake_ == Mistake::kLastDuplicateWins || last.count(slot) == 0) {
        last[slot] = i;
        lookups.push_back(i);
      } else {
        ++counts_[Counter::kDuplicates];
      }
    }
    std::map<int32_t, int32_t> place;  // index -> hot slot
    std::vector<int16_t> hits, others;
    for (int32_t i = 0; i < p_.shape.hot_size; ++i) {
      const int16_t h = lru_[i];
      if (score_ != nullptr && score_[h] >= 8 && mistake_ != Mistake::kNoAgeing) score_[h] -= 8;
      if (owner_[h] >= 0 && owner_[h] == p_.newest_slot[row_] && mistake_ != Mistake::kNoDrop) {
        owner_[h] = -1;
        if (score_ != nullptr && mistake_ != Mistake::kDroppedKeepsScore) score_[h] = 0;
      }
      const auto found = last.find(owner_[h]);
      if (found != last.end() && place.count(found->second) == 0) {
        place[found->second] = h;
        hits.push_back(h);
        if (score_ != nullptr) Raise(&score_[h]);
      } else {
        others.push_back(h);
      }
    }
    counts_[Counter::kHits] += std::ssize(hits);
    if (mistake_ == Mistake::kCountsPositions) counts_[Counter::kHits] += k_ - std::ssize(last);
    if (mistake_ == Mistake::kNewestEvictedFirst) std::reverse(others.begin(), others.end());
    if (score_ != nullptr && mistake_ != Mistake::kVictimsByAge) {
      PutVictimsFirst(std::ssize(lookups) - std::ssize(hits), &others);
    }
    int64_t misses = 0;
    for (const int32_t i : lookups) {
      if (place.count(i) > 0) continue;
      place[i] = others[misses++];
      Claim(i, place[i]);
    }
    if (mistake_ == Mistake::kMissesByDifference) {
      misses = std::min(k_ - std::ssize(hits) - resolved, std::ssize(others));
    }
    for (int32_t i = 0; i < k_; ++i) {
      const auto stands = last.find(SlotAt(i));
      if (stands == last.end()) continue;
      out_[i] = base_ + (place.count(i) > 0 ? place[i] : place[stands->second]);
    }
    Reorder(others, hits, misses);
    p_.valid_counts[row_] =
        static_cast<int32_t>(std::count_if(out_, out_ + k_, [](int32_t v) { return v >= 0; }));
  }

 private:
  int32_t SlotAt(int32_t i) const { return std::max(p_.topk[int64_t{row_} * k_ + i], -1); }

  void Raise(uint8_t* score) const {
    const int32_t hits =
        mistake_ == Mistake::kHitsAreNotCounted ? 1 : *score % 8 + (*score % 8 < 7);
    *score = static_cast<uint8_t>(128 + 17 * hits);
  }

  void PutVictimsFirst(int64_t count, std::vector<int16_t>* others) const {
    std::vector<int16_t> cheapest = *others;
    if (mistake_ == Mistake::kYoungestOfEqual) std::reverse(cheapest.begin(), cheapest.end());
    std::stable_sort(cheapest.begin(), cheapest.end(),
                     [this](int16_t a, int16_t b) { return score_[a] < score_[b]; });
    cheapest.resize(count);
    const std::set<int16_t> victims(cheapest.begin(), cheapest.end());
    std::stable_partition(others->begin(), others->end(),
                          [&victims](int16_t h) { return victims.count(h) > 0; });
    if (mistake_ != Mistake::kVictimsInScoreOrder) return;
    std::stable_sort(others->begin(), others->begin() + count,
                     [this](int16_t a, int16_t b) { return score_[a] < score_[b]; });
  }

  void Claim(int32_t i, int32_t h) {
    const int32_t slot = SlotAt(i);
    const bool sourced = slot < p_.shape.slot_count;
    if (score_ != nullptr) {
      score_[h] = sourced || mistake_ == Mistake::kUnsourcedIsDear ? 128 : 0;
    }
    ++counts_[Counter::kMisses];
    if (owner_[h] >= 0) ++counts_[Counter::kEvictions];
    owner_[h] = sourced || mistake_ == Mistake::kClaimsWithoutSource ? slot : -1;
    const int64_t entry = int64_t{row_} * k_ + p_.plan.counts[row_]++;
    const bool keeps = sourced && kept_ != nullptr && *kept_ == slot;
    const bool is_kept = keeps && mistake_ != Mistake::kKeptIsNoSource;
    const int32_t newest_row = base_ + p_.shape.hot_size;
    const int32_t kept_row = newest_row + (mistake_ == Mistake::kKeptFromNewest ? 0 : 1);
    p_.plan.slots[entry] = is_kept ? -2 - (newest_row + 1) : sourced ? slot : -1;
    p_.plan.hot_rows[entry] = base_ + h;
    if (is_kept) ++counts_[Counter::kRowsKept];
    ++counts_[sourced ? Counter::kRowsCopied : Counter::kUnsourced];
    if (sourced) p_.miss_mask[int64_t{row_} * k_ + i] = 1;
    for (int32_t l = 0; l < p_.layer_count; ++l) {
      const LayerView& layer = p_.layers[l];
      const int32_t bytes =
          layer.layout.value_bytes - (mistake_ == Mistake::kLastBytesMissing ? 16 : 0);
      const int32_t base = mistake_ == Mistake::kWrongRegion && l > 0 ? 0 : base_;
      uint8_t* to = layer.hot + ValueOffset(layer.layout, base + h);
      const uint8_t* const from = is_kept ? layer.hot + ValueOffset(layer.layout, kept_row)
                                          : layer.host + ValueOffset(layer.layout, slot);
      if (sourced) std::memcpy(to, from, bytes);
      if (!sourced && mistake_ != Mistake::kClaimsWithoutSource) std::memset(to, 0, bytes);
      const bool crosses = sourced && (!is_kept || mistake_ == Mistake::kKeptCrossesPcie);
      if (crosses) counts_[Counter::kBytesCopied] += layer.layout.value_bytes;
    }
  }

  void Reorder(const std::vector<int16_t>& others, const std::vector<int16_t>& hits,
               int64_t misses) {
    std::vector<int16_t> order(others.begin() + misses, others.end());
    const bool hits_first = mistake_ == Mistake::kHitsBeforeMisses;
    if (hits_first) order.insert(order.end(), hits.begin(), hits.end());
    order.insert(order.end(), others.begin(), others.begin() + misses);
    if (!hits_first) order.insert(order.end(), hits.begin(), hits.end());
    std::copy(order.begin(), order.end(), lru_);
  }

  const SwapInParams& p_;
  const int32_t row_, region_, base_, k_;
  const Mistake mistake_;
  int32_t* const owner_;
  int16_t* const lru_;
  uint8_t* const score_;  // null: kLru
  int32_t* const kept_;   // of the one row; null: kLru
  int32_t* const out_;
  Counts& counts_;
};

void MutantSwapIn(const SwapInParams& p, Mistake mistake) {
  Counts counts;
  std::set<int32_t> regions;
  for (int32_t row = 0; row < p.num_rows; ++row) {
    const int64_t start = int64_t{row} * p.shape.top_k;
    const int32_t region = row < *p.num_real_rows ? p.row_to_request[row] : kNone;
    p.plan.counts[row] = 0;
    p.valid_counts[row] = 0;
    std::fill_n(p.miss_mask + start, p.shape.top_k, 0);
    const bool takes_part =
        region >= 0 && region < p.shape.region_count && regions.insert(region).second;
    if (takes_part) {
      MutantRow(p, row, mistake, &counts).Run();
      counts[Counter::kSteps] = 1;
      continue;
    }
    if (region != kNone) ++counts[Counter::kRejectedRows];
    if (mistake == Mistake::kPaddingKeepsOutputs) continue;
    std::fill_n(p.hot_indices + start, p.shape.top_k, -1);
  }
  AddCounts(p.stats, counts);
}

// The number of the step at which the checks object, -1 if they never do.
int32_t CaughtAt(Mistake mistake, EvictionPolicy policy, uint64_t seed, std::string* complaint) {
  Implementation mutant = Reference();
  mutant.swap_in = [mistake](const SwapInParams& p) { MutantSwapIn(p, mistake); };
  GroupOptions options;
  options.shape = {
      .top_k = 12, .hot_size = 29, .region_count = 3, .block_size = 8, .slot_count = 144};
  options.shape.policy = policy;
  options.layouts = {Contiguous(32), Contiguous(48, 64)};
  options.num_rows = 4;
  GroupFixture group(options);
  RandomSteps steps(seed, &group);
  for (int32_t i = 0; i < 500; ++i) {
    Round round = steps.Next();
    round.replay = false;
    Prepare(round, mutant, &group);
    const StepSnapshot before(group);
    Step(round, mutant, &group);
    *complaint = CheckStep(before, group);
    if (!complaint->empty()) return i;
    Finish(round, mutant, &group);
  }
  return -1;
}

TEST(MutantsTest, WithoutAMistakeNothingIsSaid) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kAged}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      std::string complaint;
      EXPECT_EQ(CaughtAt(Mistake::kNone, policy, seed, &complaint), -1) << complaint;
    }
  }
}

void ExpectCaught(Mistake mistake, EvictionPolicy policy) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::string complaint;
    EXPECT_GE(CaughtAt(mistake, policy, seed, &complaint), 0)
        << "mistake " << static_cast<int>(mistake) << " seed " << seed;
  }
}

TEST(MutantsTest, EveryMistakeIsCaught) {
  for (const Mistake mistake : kMistakes) {
    ExpectCaught(mistake, EvictionPolicy::kLru);
    ExpectCaught(mistake, EvictionPolicy::kAged);
  }
}

TEST(MutantsTest, EveryMistakeWithScoresIsCaught) {
  for (const Mistake mistake : kScoreMistakes) ExpectCaught(mistake, EvictionPolicy::kAged);
}

}  // namespace
}  // namespace kvtier::testing
