#include "kernels/testing/step_checker.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace kvtier::testing {
namespace {

// Collects the first complaint.
class Verdict {
 public:
  template <typename... Parts>
  bool Expect(bool holds, const Parts&... parts) {
    if (holds || !text_.empty()) return holds;
    std::ostringstream out;
    (out << ... << parts);
    text_ = out.str();
    return false;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The slots of one row as the contract computes them, one division at a time.
std::vector<int32_t> SlotsOfRow(const GroupFixture& g, int32_t row, int32_t region) {
  const GroupShape& s = g.shape();
  std::vector<int32_t> slots;
  for (int32_t c = 0; c < s.top_k; ++c) {
    const int64_t value = g.topk[int64_t{row} * s.top_k + c];
    int64_t slot = value;
    if (g.options().positions && value >= 0) {
      const int64_t length = g.sequence_lengths[region];
      const int64_t index = value / s.block_size;
      const bool inside = index < s.max_blocks && (length < 0 || value < length);
      const int64_t block = inside ? g.block_table[int64_t{region} * s.max_blocks + index] : -1;
      slot = block < 0 ? -1 : block * s.block_size + value % s.block_size;
    }
    slots.push_back(slot < 0 || slot > INT32_MAX ? -1 : static_cast<int32_t>(slot));
  }
  return slots;
}

// The scores as the contract words them: a priority, and the hits so far.
struct Score {
  int32_t priority, hits;

  static Score Of(int32_t byte) { return {byte / 8, byte % 8}; }
  int32_t byte() const { return 8 * priority + hits; }
  void Age() { priority = std::max(priority - 1, 0); }
  void Hit() {
    hits = std::min(hits + 1, 7);
    priority = 16 + 2 * hits;
  }
};

bool HasSource(const GroupFixture& g, int32_t slot) {
  if (slot >= g.shape().slot_count) return false;
  return !g.options().tracking ||
         g.backed_generation[slot] == g.block_generation[slot / g.shape().block_size];
}

class Checker {
 public:
  Checker(const StepSnapshot& before, const GroupFixture& after)
      : before_(before), g_(after), s_(after.shape()) {}

  std::string Run() {
    std::map<int32_t, std::vector<int32_t>> rows_of;
    const int32_t real = std::clamp(g_.num_real_rows, 0, g_.num_rows());
    for (int32_t row = 0; row < g_.num_rows(); ++row) {
      const int32_t region = g_.row_to_request[row];
      const bool known = row < real && region >= 0 && region < s_.region_count;
      if (known && std::ssize(rows_of[region]) < s_.rows_per_request) {
        rows_of[region].push_back(row);
        continue;
      }
      if (row < real && region != -1) Count(Counter::kRejectedRows);
      CheckPaddingRow(row);
    }
    for (int32_t region = 0; region < s_.region_count; ++region) {
      if (rows_of.count(region) > 0) {
        CheckRequest(region, rows_of[region]);
      } else {
        v_.Expect(Lru(before_.lru, region) == Lru(g_.lru, region) &&
                      Owners(before_.owner, region) == g_.Owners(region) &&
                      Scores(region) == g_.Scores(region) && Kept(region) == g_.Kept(region),
                  "region ", region, " had no rows, but its state changed");
      }
    }
    if (!rows_of.empty()) Count(Counter::kSteps);
    CheckCounters();
    v_.Expect(g_.GuardDamage().empty(), g_.GuardDamage(), " was written past its ends");
    return v_.text();
  }

 private:
  std::vector<int32_t> Owners(const std::vector<int32_t>& all, int32_t region) const {
    const auto first = all.begin() + int64_t{region} * s_.hot_size;
    return {first, first + s_.hot_size};
  }
  std::vector<int32_t> Lru(const std::vector<int16_t>& all, int32_t region) const {
    const auto first = all.begin() + int64_t{region} * s_.hot_size;
    return {first, first + s_.hot_size};
  }

  std::vector<int32_t> Scores(int32_t region) const {
    if (before_.score.empty()) return {};
    const auto first = before_.score.begin() + int64_t{region} * s_.hot_size;
    return {first, first + s_.hot_size};
  }

  std::vector<int32_t> Kept(int32_t region) const {
    if (before_.kept.empty()) return {};
    const auto first = before_.kept.begin() + int64_t{region} * s_.rows_per_request;
    return {first, first + s_.rows_per_request};
  }

  void Count(Counter counter, int64_t by = 1) { expected_[counter] += by; }

  void CheckPaddingRow(int32_t row) {
    bool clean = g_.valid_counts[row] == 0 && g_.plan_counts[row] == 0;
    for (int32_t c = 0; c < s_.top_k; ++c) {
      const int64_t at = int64_t{row} * s_.top_k + c;
      clean = clean && g_.hot_indices[at] == -1 && g_.miss_mask[at] == 0;
    }
    v_.Expect(clean, "padding row ", row, " has outputs");
  }

  // One request: what was asked, what must have been found, where the rest must have gone.
  void CheckRequest(int32_t region, const std::vector<int32_t>& rows) {
    const int32_t base = region * s_.region_stride;
    std::map<int32_t, int32_t> newest;  // slot -> hot row
    for (size_t k = 0; k < rows.size(); ++k) {
      const int32_t slot = g_.newest_slot[rows[k]];
      if (slot >= 0) newest.insert({slot, base + s_.hot_size + static_cast<int32_t>(k)});
    }
    std::vector<int32_t> asked;                           // distinct lookups as they appear
    std::map<int32_t, std::pair<int32_t, int32_t>> seen;  // lookup -> row, column
    std::map<int32_t, std::vector<int32_t>> slots_of;
    for (const int32_t row : rows) {
      slots_of[row] = SlotsOfRow(g_, row, region);
      for (int32_t c = 0; c < s_.top_k; ++c) {
        const int32_t slot = slots_of[row][c];
        if (slot < 0) {
          Count(Counter::kInvalid);
        } else if (newest.count(slot) > 0) {
          Count(Counter::kNewest);
        } else if (!seen.insert({slot, {row, c}}).second) {
          Count(Counter::kDuplicates);
        } else {
          asked.push_back(slot);
        }
      }
    }
    std::vector<int32_t> owners = Owners(before_.owner, region);
    std::vector<int32_t> scores = Scores(region);
    for (int32_t h = 0; h < s_.hot_size; ++h) {
      const bool is_rewritten = newest.count(owners[h]) > 0;
      if (is_rewritten) owners[h] = -1;
      if (!scores.empty()) {
        Score score = Score::Of(scores[h]);
        score.Age();
        scores[h] = is_rewritten ? 0 : score.byte();
      }
    }
    const std::map<int32_t, int32_t> place = Placement(region, owners, scores, asked);
    CheckScores(region, owners, scores, asked, place);
    CheckPositions(base, rows, slots_of, newest, place);
    CheckMisses(base, rows, owners, asked, seen, place);
    CheckKept(region, newest);
    CheckState(region, owners, asked, place);
  }

  // Lookup -> hot slot, -1 where there was none left; by the rules "hits stay" and "the m-th miss
  // takes the m-th oldest of the others" (with scores: of those that the cheapest are). Also the
  // expected order.
  std::map<int32_t, int32_t> Placement(int32_t region, const std::vector<int32_t>& owners,
                                       const std::vector<int32_t>& scores,
                                       const std::vector<int32_t>& asked) {
    std::map<int32_t, int32_t> place;
    const std::set<int32_t> wanted(asked.begin(), asked.end());
    std::vector<int32_t> others, hits;
    for (const int32_t hot_slot : Lru(before_.lru, region)) {
      if (wanted.count(owners[hot_slot]) > 0) {
        place[owners[hot_slot]] = hot_slot;
        hits.push_back(hot_slot);
      } else {
        others.push_back(hot_slot);
      }
    }
    if (!scores.empty()) PutCheapestFirst(scores, asked.size() - hits.size(), &others);
    size_t taken = 0;
    for (const int32_t slot : asked) {
      if (place.count(slot) == 0) place[slot] = taken < others.size() ? others[taken++] : -1;
    }
    std::rotate(others.begin(), others.begin() + static_cast<int64_t>(taken), others.end());
    others.insert(others.end(), hits.begin(), hits.end());
    v_.Expect(Lru(g_.lru, region) == others, "region ", region, ": wrong order after the step");
    return place;
  }

  // Of `others`, oldest first, the `count` with the smallest scores come first.
  static void PutCheapestFirst(const std::vector<int32_t>& scores, size_t count,
                               std::vector<int32_t>* others) {
    std::set<std::pair<int32_t, size_t>> by_score;  // score, age
    for (size_t i = 0; i < others->size(); ++i) by_score.insert({scores[(*others)[i]], i});
    std::vector<int32_t> cheapest, rest;
    std::set<size_t> chosen;
    for (const auto& [score, i] : by_score) {
      if (chosen.size() < count) chosen.insert(i);
    }
    for (size_t i = 0; i < others->size(); ++i) {
      (chosen.count(i) > 0 ? cheapest : rest).push_back((*others)[i]);
    }
    *others = cheapest;
    others->insert(others->end(), rest.begin(), rest.end());
  }

  void CheckScores(int32_t region, const std::vector<int32_t>& owners, std::vector<int32_t> aged,
                   const std::vector<int32_t>& asked, const std::map<int32_t, int32_t>& place) {
    if (aged.empty()) return;
    for (const int32_t slot : asked) {
      const int32_t hot_slot = place.at(slot);
      if (hot_slot < 0) continue;
      Score score = Score::Of(aged[hot_slot]);
      score.Hit();
      const bool is_hit = owners[hot_slot] == slot;
      aged[hot_slot] = is_hit ? score.byte() : HasSource(g_, slot) ? 128 : 0;
    }
    v_.Expect(g_.Scores(region) == aged, "region ", region, ": wrong scores");
  }

  void CheckPositions(int32_t base, const std::vector<int32_t>& rows,
                      const std::map<int32_t, std::vector<int32_t>>& slots_of,
                      const std::map<int32_t, int32_t>& newest,
                      const std::map<int32_t, int32_t>& place) {
    for (const int32_t row : rows) {
      int32_t valid = 0;
      for (int32_t c = 0; c < s_.top_k; ++c) {
        const int32_t slot = slots_of.at(row)[c];
        int32_t expected = -1;
        if (slot >= 0) {
          expected = newest.count(slot) > 0 ? newest.at(slot)
                     : place.at(slot) < 0   ? -1
                                            : base + place.at(slot);
        }
        valid += expected >= 0;
        v_.Expect(g_.hot_indices[int64_t{row} * s_.top_k + c] == expected, "hot index of row ", row,
                  " column ", c, " (slot ", slot, ") is ",
                  g_.hot_indices[int64_t{row} * s_.top_k + c], ", not ", expected);
      }
      v_.Expect(g_.valid_counts[row] == valid, "valid count of row ", row);
    }
  }

  void CheckMisses(int32_t base, const std::vector<int32_t>& rows,
                   const std::vector<int32_t>& owners, const std::vector<int32_t>& asked,
                   const std::map<int32_t, std::pair<int32_t, int32_t>>& seen,
                   const std::map<int32_t, int32_t>& place) {
    const std::set<int32_t> owned(owners.begin(), owners.end());
    std::map<int32_t, std::vector<std::pair<int32_t, int32_t>>> plan;  // row -> entries
    std::set<std::pair<int32_t, int32_t>> copied;                      // row, column
    for (const int32_t slot : asked) {
      if (owned.count(slot) > 0) {
        Count(Counter::kHits);
        continue;
      }
      Count(Counter::kMisses);
      const int32_t hot_slot = place.at(slot);
      const bool has_source = HasSource(g_, slot);
      const int32_t source = has_source ? SourceOf(base, slot) : -1;
      if (hot_slot < 0) {
        Count(Counter::kUnplaced);
      } else if (has_source) {
        Count(Counter::kRowsCopied);
        if (source < 0) Count(Counter::kRowsKept);
        copied.insert(seen.at(slot));
      } else {
        Count(slot >= s_.slot_count ? Counter::kUnsourced : Counter::kUnbackedReads);
      }
      if (hot_slot >= 0 && owners[hot_slot] >= 0) Count(Counter::kEvictions);
      plan[seen.at(slot).first].push_back(
          {hot_slot >= 0 ? source : -1, hot_slot >= 0 ? base + hot_slot : -1});
    }
    for (const int32_t row : rows) {
      const int64_t start = int64_t{row} * s_.top_k;
      for (int32_t c = 0; c < s_.top_k; ++c) {
        v_.Expect(g_.miss_mask[start + c] == static_cast<int32_t>(copied.count({row, c})),
                  "miss mask of row ", row, " column ", c);
      }
      v_.Expect(g_.plan_counts[row] == std::ssize(plan[row]), "plan count of row ", row);
      for (int64_t i = 0; i < std::ssize(plan[row]); ++i) {
        v_.Expect(g_.plan_slots[start + i] == plan[row][i].first &&
                      g_.plan_hot_rows[start + i] == plan[row][i].second,
                  "plan entry ", i, " of row ", row);
      }
    }
  }

  // What the plan says for a slot of the host pool: itself, or -2 - the kept row that has it.
  int32_t SourceOf(int32_t base, int32_t slot) const {
    const std::vector<int32_t> kept = Kept(base / s_.region_stride);
    const auto found = std::find(kept.begin(), kept.end(), slot);
    if (found == kept.end()) return slot;
    const auto rank = static_cast<int32_t>(found - kept.begin());
    return -2 - (base + s_.hot_size + s_.rows_per_request + rank);
  }

  // Kept rows whose slot is rewritten are forgotten, the others hold their host rows.
  void CheckKept(int32_t region, const std::map<int32_t, int32_t>& newest) {
    std::vector<int32_t> kept = Kept(region);
    for (int32_t& slot : kept) {
      if (newest.count(slot) > 0) slot = -1;
    }
    v_.Expect(g_.Kept(region) == kept, "region ", region, ": wrong slots of kept rows");
    const int32_t first = region * s_.region_stride + s_.hot_size + s_.rows_per_request;
    for (int32_t rank = 0; rank < std::ssize(kept); ++rank) {
      for (int32_t l = 0; l < g_.layer_count() && kept[rank] >= 0; ++l) {
        v_.Expect(g_.HotRow(l, first + rank) == g_.HostRow(l, kept[rank]), "region ", region,
                  " kept row ", rank, " layer ", l, " doesn't hold the bytes of slot ", kept[rank]);
      }
    }
  }

  void CheckState(int32_t region, const std::vector<int32_t>& owners,
                  const std::vector<int32_t>& asked, const std::map<int32_t, int32_t>& place) {
    std::vector<int32_t> expected = owners;
    const int32_t base = region * s_.region_stride;
    for (const int32_t slot : asked) {
      const int32_t hot_slot = place.at(slot);
      if (hot_slot < 0) continue;
      const bool hit = owners[hot_slot] == slot;
      expected[hot_slot] = hit || HasSource(g_, slot) ? slot : -1;
      if (expected[hot_slot] >= 0) continue;
      for (int32_t l = 0; l < g_.layer_count(); ++l) {
        const std::string zeros(RowBytes(g_.layouts()[l]), '\0');
        v_.Expect(g_.HotRow(l, base + hot_slot) == zeros, "slot ", slot,
                  " has no source, but its hot row isn't zero");
      }
    }
    const std::vector<int32_t> now = g_.Owners(region);
    v_.Expect(now == expected, "region ", region, ": wrong owners");
    std::set<int32_t> once;
    for (int32_t h = 0; h < s_.hot_size; ++h) {
      const int32_t owner = now[h];
      if (owner < 0) continue;
      v_.Expect(once.insert(owner).second, "slot ", owner, " is owned twice");
      for (int32_t l = 0; l < g_.layer_count() && owner < s_.slot_count; ++l) {
        v_.Expect(g_.HotRow(l, base + h) == g_.HostRow(l, owner), "region ", region, " hot slot ",
                  h, " layer ", l, " doesn't hold the bytes of slot ", owner);
      }
    }
    std::vector<int32_t> order = Lru(g_.lru, region);
    std::sort(order.begin(), order.end());
    for (int32_t h = 0; h < s_.hot_size; ++h) {
      v_.Expect(order[h] == h, "region ", region, ": the order is no permutation");
    }
  }

  void CheckCounters() {
    const Counts after = g_.counts();
    const int64_t shared = after[Counter::kRowsShared] - before_.counts[Counter::kRowsShared];
    if (g_.options().shares_rows) Count(Counter::kRowsShared, shared);
    v_.Expect(shared >= 0 && shared <= expected_[Counter::kRowsCopied], shared, " shared rows");
    const int64_t from_host = expected_[Counter::kRowsCopied] - expected_[Counter::kRowsShared] -
                              expected_[Counter::kRowsKept];
    for (int32_t l = 0; l < g_.layer_count(); ++l) {
      Count(Counter::kBytesCopied, from_host * RowBytes(g_.layouts()[l]));
    }
    for (int32_t c = 0; c < kCounterCount; ++c) {
      const int64_t rise = after.values[c] - before_.counts.values[c];
      v_.Expect(rise == expected_.values[c], "counter ", c, " rose by ", rise, ", not ",
                expected_.values[c]);
    }
  }

  const StepSnapshot& before_;
  const GroupFixture& g_;
  const GroupShape& s_;
  Counts expected_;
  Verdict v_;
};

}  // namespace

std::string CheckStep(const StepSnapshot& before, const GroupFixture& after) {
  return Checker(before, after).Run();
}

}  // namespace kvtier::testing
