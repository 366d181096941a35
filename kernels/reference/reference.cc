#include "kernels/reference/reference.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <vector>

#include "kernels/eviction.h"
#include "kernels/kept_rows.h"
#include "kernels/reference/rows.h"
#include "kernels/region_index.h"
#include "kernels/stats_block.h"

namespace kvtier::reference {
namespace {

// A position of top-k that needs no hot slot: masked, or the newest token.
constexpr int32_t kNoLookup = -1;

// One distinct row that the rows of a request ask for.
struct Lookup {
  int32_t slot;
  int32_t row, column;       // of its first appearance
  int32_t hot_slot = kNone;  // once it is found or placed
};

// The rows of each request in batch order. Rows that take no part are left out: padding, a
// request out of range, more rows than a request may have.
std::map<int32_t, std::vector<int32_t>> GroupRows(const SwapInParams& p, Counts* counts) {
  std::map<int32_t, std::vector<int32_t>> groups;
  for (int32_t row = 0; row < RealRows(p.num_real_rows, p.num_rows); ++row) {
    const int32_t region = p.row_to_request[row];
    if (region == kNone) continue;
    const bool known = region >= 0 && region < p.shape.region_count;
    if (!known || std::ssize(groups[region]) >= p.shape.rows_per_request) {
      ++(*counts)[Counter::kRejectedRows];
      continue;
    }
    groups[region].push_back(row);
  }
  return groups;
}

// The rows of one request: one transaction over the union of their lookups.
class Transaction {
 public:
  Transaction(const SwapInParams& params, int32_t region, const std::vector<int32_t>& rows,
              Counts* counts)
      : p_(params),
        region_(region),
        base_(region * params.shape.region_stride),
        rows_(rows),
        owner_(params.state.owner + int64_t{region} * params.shape.hot_size),
        lru_(params.state.lru + int64_t{region} * params.shape.hot_size),
        score_(ScoresOf(params.shape, params.state, region)),
        kept_(KeptOf(params.shape, params.state, region)),
        counts_(*counts) {}

  void Run() {
    Classify();
    DropKept();
    Walk();
    ChooseVictims();
    PlaceMisses();
    Emit();
  }

 private:
  int32_t SlotAt(int32_t row, int32_t column) const {
    const int32_t value = p_.topk[int64_t{row} * p_.shape.top_k + column];
    if (p_.block_table == nullptr) return value < 0 ? kNone : value;
    const int32_t length = p_.sequence_lengths == nullptr ? kNone : p_.sequence_lengths[region_];
    return ResolveSlot(p_.block_table + int64_t{region_} * p_.shape.max_blocks, p_.shape.max_blocks,
                       p_.shape.block_size, length, value);
  }

  // 1. Every position is masked, a newest token, or a lookup. Equal slots are one lookup.
  void Classify() {
    for (size_t rank = 0; rank < rows_.size() && p_.newest_slot != nullptr; ++rank) {
      const int32_t slot = p_.newest_slot[rows_[rank]];
      const int32_t hot_row = base_ + p_.shape.hot_size + static_cast<int32_t>(rank);
      if (slot >= 0) newest_.emplace(slot, hot_row);  // of equal ones the first row's stays
    }
    for (const int32_t row : rows_) {
      for (int32_t column = 0; column < p_.shape.top_k; ++column) {
        const int32_t slot = SlotAt(row, column);
        int32_t& hot_index = p_.hot_indices[int64_t{row} * p_.shape.top_k + column];
        asked_.push_back(kNoLookup);
        if (slot < 0) {
          hot_index = kNone;
          ++counts_[Counter::kInvalid];
        } else if (const auto newest = newest_.find(slot); newest != newest_.end()) {
          hot_index = newest->second;
          ++counts_[Counter::kNewest];
        } else {
          const auto next = static_cast<int32_t>(lookups_.size());
          const auto [known, first] = lookup_of_.emplace(slot, next);
          if (first) lookups_.push_back({slot, row, column});
          if (!first) ++counts_[Counter::kDuplicates];
          asked_.back() = known->second;
        }
      }
    }
  }

  // What a kept row holds of a newest slot is stale: it is being rewritten.
  void DropKept() {
    for (int32_t rank = 0; kept_ != nullptr && rank < p_.shape.rows_per_request; ++rank) {
      if (newest_.count(kept_[rank]) > 0) kept_[rank] = kNone;
    }
  }

  // 2. Oldest first: a hot slot whose owner is asked for is a hit, every other one evictable. The
  // order lies in memory that others can overwrite: an entry that is no hot slot, or is one for
  // the second time, is evictable as well, but of no use to the miss that draws it.
  void Walk() {
    std::vector<bool> met(p_.shape.hot_size, false);
    for (int32_t i = 0; i < p_.shape.hot_size; ++i) {
      const int16_t entry = lru_[i];
      if (entry < 0 || entry >= p_.shape.hot_size || met[entry]) {
        evictable_.push_back({i, entry, false, kUnusableScore});
        continue;
      }
      met[entry] = true;
      uint8_t score = score_ == nullptr ? kNoScore : AgedScore(score_[entry]);
      // The newest row is being rewritten, so a copy of what was there before is stale.
      if (newest_.count(owner_[entry]) > 0) {
        owner_[entry] = kNone;
        score = kNoScore;
      }
      const auto asked = lookup_of_.find(owner_[entry]);
      if (asked != lookup_of_.end() && lookups_[asked->second].hot_slot == kNone) {
        lookups_[asked->second].hot_slot = entry;
        hits_.push_back(entry);
        score = HitScore(score);
      } else {
        evictable_.push_back({i, entry, true, score});
      }
      if (score_ != nullptr) score_[entry] = score;
    }
    counts_[Counter::kHits] += std::ssize(hits_);
  }

  // Puts the evictables that this step's misses draw in front, both parts oldest first. They are
  // the oldest or, where there are scores, those with the smallest, of equal ones the oldest.
  void ChooseVictims() {
    if (score_ == nullptr) return;
    size_t misses = 0;
    for (const Lookup& lookup : lookups_) misses += lookup.hot_slot == kNone;
    std::vector<Evictable> by_score = evictable_;
    std::stable_sort(by_score.begin(), by_score.end(),
                     [](const Evictable& a, const Evictable& b) { return a.score < b.score; });
    by_score.resize(std::min(by_score.size(), misses));
    std::set<int32_t> victims;
    for (const Evictable& victim : by_score) victims.insert(victim.at);
    std::stable_partition(
        evictable_.begin(), evictable_.end(),
        [&victims](const Evictable& evictable) { return victims.count(evictable.at) > 0; });
  }

  // 3. and 5. The m-th miss in order of first appearance takes the m-th victim.
  void PlaceMisses() {
    size_t drawn = 0;
    for (Lookup& lookup : lookups_) {
      if (lookup.hot_slot != kNone) continue;
      ++counts_[Counter::kMisses];
      int32_t source = kNone, hot_row = kNone;
      if (drawn < evictable_.size() && evictable_[drawn].usable) {
        lookup.hot_slot = evictable_[drawn].entry;
        hot_row = base_ + lookup.hot_slot;
        source = Fill(lookup);
      } else {
        ++counts_[Counter::kUnplaced];
        if (drawn < evictable_.size()) ++counts_[Counter::kStateRepairs];
      }
      if (drawn < evictable_.size()) ++drawn;
      AppendToPlan(lookup.row, source, hot_row);
    }
    Reorder(drawn);
  }

  // Where the bytes of a row of the host pool are: in a kept row, or there.
  int32_t KeptOr(int32_t slot) {
    for (int32_t rank = 0; kept_ != nullptr && rank < p_.shape.rows_per_request; ++rank) {
      if (kept_[rank] != slot) continue;
      ++counts_[Counter::kRowsKept];
      return FromHotRow(KeptRow(p_.shape, region_, rank));
    }
    return slot;
  }

  // Gives the lookup's hot slot its bytes. Returns where they came from as a plan says it.
  int32_t Fill(const Lookup& lookup) {
    const int32_t slot = lookup.slot;
    int32_t source = kNone, owner = kNone;
    if (slot >= p_.shape.slot_count) {
      ++counts_[Counter::kUnsourced];
    } else if (p_.tracking.backed_generation != nullptr &&
               p_.tracking.backed_generation[slot] !=
                   p_.tracking.block_generation[slot / p_.shape.block_size]) {
      ++counts_[Counter::kUnbackedReads];
    } else {
      owner = slot;
      source = KeptOr(slot);
      ++counts_[Counter::kRowsCopied];
      if (p_.miss_mask != nullptr) {
        p_.miss_mask[int64_t{lookup.row} * p_.shape.top_k + lookup.column] = 1;
      }
    }
    if (owner_[lookup.hot_slot] >= 0) ++counts_[Counter::kEvictions];
    owner_[lookup.hot_slot] = owner;
    if (score_ != nullptr) score_[lookup.hot_slot] = owner == kNone ? kNoScore : kMissScore;
    counts_[Counter::kBytesCopied] +=
        FillHotRow(p_.layers, p_.layer_count, source, base_ + lookup.hot_slot);
    return source;
  }

  void AppendToPlan(int32_t row, int32_t slot, int32_t hot_row) {
    if (p_.plan.counts == nullptr) return;
    const int64_t at = int64_t{row} * p_.shape.top_k + p_.plan.counts[row]++;
    p_.plan.slots[at] = slot;
    p_.plan.hot_rows[at] = hot_row;
  }

  // 4. Evictables that stay (oldest first), then those given to this step's misses, then the hits.
  void Reorder(size_t drawn) {
    int16_t* next = lru_;
    for (size_t i = drawn; i < evictable_.size(); ++i) *next++ = evictable_[i].entry;
    for (size_t i = 0; i < drawn; ++i) *next++ = evictable_[i].entry;
    for (const int16_t entry : hits_) *next++ = entry;
  }

  void Emit() {
    size_t at = 0;
    for (const int32_t row : rows_) {
      int32_t* hot_indices = p_.hot_indices + int64_t{row} * p_.shape.top_k;
      for (int32_t column = 0; column < p_.shape.top_k; ++column) {
        const int32_t asked = asked_[at++];
        if (asked == kNoLookup) continue;
        const int32_t hot_slot = lookups_[asked].hot_slot;
        hot_indices[column] = hot_slot == kNone ? kNone : base_ + hot_slot;
      }
      if (p_.valid_counts != nullptr) {
        p_.valid_counts[row] = static_cast<int32_t>(std::count_if(
            hot_indices, hot_indices + p_.shape.top_k, [](int32_t index) { return index >= 0; }));
      }
    }
  }

  struct Evictable {
    int32_t at;  // in the order
    int16_t entry;
    bool usable;
    uint8_t score;
  };

  const SwapInParams& p_;
  const int32_t region_;
  const int32_t base_;
  const std::vector<int32_t>& rows_;
  int32_t* const owner_;
  int16_t* const lru_;
  uint8_t* const score_;  // null: kLru
  int32_t* const kept_;   // null: no row is kept
  Counts& counts_;

  std::unordered_map<int32_t, int32_t> newest_;     // newest slot -> hot row
  std::unordered_map<int32_t, int32_t> lookup_of_;  // slot -> index in lookups_
  std::vector<Lookup> lookups_;                     // in order of first appearance
  std::vector<int32_t> asked_;                      // every position of rows_ -> its lookup
  std::vector<Evictable> evictable_;                // oldest first; victims in front
  std::vector<int16_t> hits_;                       // oldest first
};

}  // namespace

void SwapIn(const SwapInParams& params) {
  const int64_t positions = int64_t{params.num_rows} * params.shape.top_k;
  std::fill_n(params.hot_indices, positions, kNone);
  if (params.miss_mask != nullptr) std::fill_n(params.miss_mask, positions, 0);
  if (params.valid_counts != nullptr) std::fill_n(params.valid_counts, params.num_rows, 0);
  if (params.plan.counts != nullptr) std::fill_n(params.plan.counts, params.num_rows, 0);
  Counts counts;
  const auto groups = GroupRows(params, &counts);
  for (const auto& [region, rows] : groups) Transaction(params, region, rows, &counts).Run();
  counts[Counter::kSteps] = groups.empty() ? 0 : 1;
  AddCounts(params.stats, counts);
}

void ReplayPlan(const ReplayPlanParams& params) {
  Counts counts;
  const int32_t hot_rows = params.shape.region_count * params.shape.region_stride;
  for (int32_t row = 0; row < RealRows(params.num_real_rows, params.num_rows); ++row) {
    const int32_t entries = std::clamp(params.plan.counts[row], 0, params.shape.top_k);
    for (int32_t i = 0; i < entries; ++i) {
      const int64_t at = int64_t{row} * params.shape.top_k + i;
      const int32_t hot_row = params.plan.hot_rows[at];
      if (hot_row < 0 || hot_row >= hot_rows) continue;
      const int32_t source =
          CheckedSource(params.plan.slots[at], params.shape.slot_count, hot_rows);
      counts[Counter::kBytesCopied] +=
          FillHotRow(params.layers, params.layer_count, source, hot_row);
    }
  }
  AddCounts(params.stats, counts);
}

namespace {

// A newest row of the hot buffer that is backed up stays in its kept row.
void Keep(const BackupParams& p, int32_t region, int32_t rank, int32_t source, int32_t slot) {
  int32_t* const kept = KeptOf(p.shape, p.state, region);
  if (kept == nullptr) return;
  std::replace(kept, kept + p.shape.rows_per_request, slot, kNone);
  if (p.source_rows != nullptr || p.sources != nullptr) return;
  kept[rank] = slot;
  for (int32_t l = 0; l < p.layer_count; ++l) {
    const LayerView& layer = p.layers[l];
    CopyRow(layer.hot, layer.layout, KeptRow(p.shape, region, rank), layer.hot, layer.layout,
            source);
  }
}

}  // namespace

// Pair after pair in batch order, so of two rows for one slot the later one stays.
void Backup(const BackupParams& p) {
  Counts counts;
  std::map<int32_t, int32_t> rows_of_request;  // met so far
  const int32_t source_row_end =
      p.sources == nullptr ? p.shape.region_count * p.shape.region_stride : p.source_row_count;
  for (int32_t row = 0; row < RealRows(p.num_real_rows, p.num_rows); ++row) {
    const int32_t region = p.row_to_request == nullptr ? kNone : p.row_to_request[row];
    const bool known = region >= kNone && region < p.shape.region_count;
    const int32_t rank = known ? rows_of_request[region]++ : 0;
    const bool from_newest_row = p.source_rows == nullptr;
    if (from_newest_row && region == kNone) continue;
    if (!known || (from_newest_row && rank >= p.shape.rows_per_request)) {
      ++counts[Counter::kRejectedRows];
      continue;
    }
    const int32_t source = from_newest_row ? NewestRow(p.shape, region, rank) : p.source_rows[row];
    const int32_t slot = p.slots[row];
    if (slot < 0 || slot >= p.shape.slot_count || source < 0 || source >= source_row_end) continue;
    for (int32_t l = 0; l < p.layer_count; ++l) {
      const LayerView& layer = p.layers[l];
      CopyRow(layer.host, layer.layout, slot, p.sources == nullptr ? layer.hot : p.sources[l],
              p.sources == nullptr ? layer.layout : p.source_layouts[l], source);
      counts[Counter::kBackedUpBytes] += RowBytes(layer.layout);
    }
    ++counts[Counter::kBackedUpRows];
    if (p.tracking.backed_generation != nullptr) {
      p.tracking.backed_generation[slot] = p.tracking.block_generation[slot / p.shape.block_size];
    }
    if (region == kNone) continue;
    int32_t* owner = p.state.owner + int64_t{region} * p.shape.hot_size;
    std::replace(owner, owner + p.shape.hot_size, slot, kNone);
    Keep(p, region, rank, source, slot);
  }
  AddCounts(p.stats, counts);
}

void Invalidate(const InvalidateParams& params) {
  Counts counts;
  const std::set<int32_t> blocks(params.blocks, params.blocks + params.block_count);
  const auto drop = [&](int32_t* owners, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (owners[i] < 0 || blocks.count(owners[i] / params.shape.block_size) == 0) continue;
      owners[i] = kNone;
      ++counts[Counter::kInvalidatedCopies];
    }
  };
  const int64_t regions = params.shape.region_count;
  drop(params.state.owner, regions * params.shape.hot_size);
  int32_t* const kept = KeptOf(params.shape, params.state, 0);
  if (kept != nullptr) drop(kept, regions * params.shape.rows_per_request);
  AddCounts(params.stats, counts);
}

void ResetRegion(const ResetRegionParams& params) {
  if (params.region < 0 || params.region >= params.shape.region_count) return;
  const int64_t first = int64_t{params.region} * params.shape.hot_size;
  std::fill_n(params.state.owner + first, params.shape.hot_size, kNone);
  std::iota(params.state.lru + first, params.state.lru + first + params.shape.hot_size, int16_t{0});
  uint8_t* const score = ScoresOf(params.shape, params.state, params.region);
  if (score != nullptr) std::fill_n(score, params.shape.hot_size, kNoScore);
  int32_t* const kept = KeptOf(params.shape, params.state, params.region);
  if (kept != nullptr) std::fill_n(kept, params.shape.rows_per_request, kNone);
  if (params.state.index == nullptr) return;
  const int64_t words = RegionIndexLength(params.shape.hot_size);
  std::fill_n(params.state.index + params.region * words, words, uint16_t{0});
}

}  // namespace kvtier::reference
