#include "kernels/reference/reference.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <vector>

#include "kernels/eviction.h"
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

int32_t RealRows(const int32_t* num_real_rows, int32_t num_rows) {
  return num_real_rows == nullptr ? num_rows : std::clamp(*num_real_rows, 0, num_rows);
}

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

void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row, const uint8_t* from,
             const RowLayout& from_layout, int32_t from_row) {
  std::memcpy(to + ValueOffset(to_layout, to_row), from + ValueOffset(from_layout, from_row),
              to_layout.value_bytes);
  if (to_layout.format != RowFormat::kSplitPage) return;
  std::memcpy(to + ScaleOffset(to_layout, to_row), from + ScaleOffset(from_layout, from_row),
              to_layout.scale_bytes);
}

void ZeroRow(uint8_t* to, const RowLayout& layout, int32_t row) {
  std::memset(to + ValueOffset(layout, row), 0, layout.value_bytes);
  if (layout.format != RowFormat::kSplitPage) return;
  std::memset(to + ScaleOffset(layout, row), 0, layout.scale_bytes);
}

// One entry of a plan on all layers: slot kNone zeroes. Returns the bytes copied.
int64_t FillHotRow(const LayerView* layers, int32_t layer_count, int32_t slot, int32_t hot_row) {
  int64_t bytes = 0;
  for (int32_t l = 0; l < layer_count; ++l) {
    const RowLayout& layout = layers[l].layout;
    if (slot == kNone) {
      ZeroRow(layers[l].hot, layout, hot_row);
    } else {
      CopyRow(layers[l].hot, layout, hot_row, layers[l].host, layout, slot);
      bytes += RowBytes(layout);
    }
  }
  return bytes;
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
        counts_(*counts) {}

  void Run() {
    Classify();
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

  // Gives the lookup's hot slot its bytes. Returns the host row they came from, kNone for zeros.
  int32_t Fill(const Lookup& lookup) {
    const int32_t slot = lookup.slot;
    int32_t source = kNone;
    if (slot >= p_.shape.slot_count) {
      ++counts_[Counter::kUnsourced];
    } else if (p_.tracking.backed_generation != nullptr &&
               p_.tracking.backed_generation[slot] !=
                   p_.tracking.block_generation[slot / p_.shape.block_size]) {
      ++counts_[Counter::kUnbackedReads];
    } else {
      source = slot;
      ++counts_[Counter::kRowsCopied];
      if (p_.miss_mask != nullptr) {
        p_.miss_mask[int64_t{lookup.row} * p_.shape.top_k + lookup.column] = 1;
      }
    }
    if (owner_[lookup.hot_slot] >= 0) ++counts_[Counter::kEvictions];
    owner_[lookup.hot_slot] = source;
    if (score_ != nullptr) score_[lookup.hot_slot] = source == kNone ? kNoScore : kMissScore;
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
  for (int32_t row = 0; row < RealRows(params.num_real_rows, params.num_rows); ++row) {
    const int32_t entries = std::clamp(params.plan.counts[row], 0, params.shape.top_k);
    for (int32_t i = 0; i < entries; ++i) {
      const int64_t at = int64_t{row} * params.shape.top_k + i;
      const int32_t hot_row = params.plan.hot_rows[at];
      if (hot_row < 0 || hot_row >= params.shape.region_count * params.shape.region_stride)
        continue;
      int32_t slot = params.plan.slots[at];
      if (slot < 0 || slot >= params.shape.slot_count) slot = kNone;
      counts[Counter::kBytesCopied] += FillHotRow(params.layers, params.layer_count, slot, hot_row);
    }
  }
  AddCounts(params.stats, counts);
}

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
    const int32_t source = from_newest_row
                               ? region * p.shape.region_stride + p.shape.hot_size + rank
                               : p.source_rows[row];
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
  }
  AddCounts(p.stats, counts);
}

void Invalidate(const InvalidateParams& params) {
  Counts counts;
  const std::set<int32_t> blocks(params.blocks, params.blocks + params.block_count);
  const int64_t hot_slots = int64_t{params.shape.region_count} * params.shape.hot_size;
  for (int64_t i = 0; i < hot_slots; ++i) {
    int32_t& owner = params.state.owner[i];
    if (owner < 0 || blocks.count(owner / params.shape.block_size) == 0) continue;
    owner = kNone;
    ++counts[Counter::kInvalidatedCopies];
  }
  AddCounts(params.stats, counts);
}

void ResetRegion(const ResetRegionParams& params) {
  if (params.region < 0 || params.region >= params.shape.region_count) return;
  const int64_t first = int64_t{params.region} * params.shape.hot_size;
  std::fill_n(params.state.owner + first, params.shape.hot_size, kNone);
  std::iota(params.state.lru + first, params.state.lru + first + params.shape.hot_size, int16_t{0});
  uint8_t* const score = ScoresOf(params.shape, params.state, params.region);
  if (score != nullptr) std::fill_n(score, params.shape.hot_size, kNoScore);
  if (params.state.index == nullptr) return;
  const int64_t words = RegionIndexLength(params.shape.hot_size);
  std::fill_n(params.state.index + params.region * words, words, uint16_t{0});
}

}  // namespace kvtier::reference
