#include "tests/gpu/parity.h"

#include <algorithm>

#include "kernels/stats_block.h"
#include "kernels/testing/byte_buffer.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

// What a stray writer may do to the state, the same to both groups. Damage lasts until the next
// call puts everything right again, as the admission of another request does.
void Corrupt(Random* random, GroupFixture* a, GroupFixture* b) {
  const GroupShape& s = a->shape();
  if (random->OneIn(4)) {
    for (GroupFixture* group : {a, b}) {
      std::fill(group->index.begin(), group->index.end(), uint16_t{0});
      std::fill(group->directory.begin(), group->directory.end(), 0);
      std::fill(group->owner.begin(), group->owner.end(), kNone);
      std::fill(group->score.begin(), group->score.end(), uint8_t{0});
      std::fill(group->kept.begin(), group->kept.end(), kNone);
      for (size_t i = 0; i < group->lru.size(); ++i) {
        group->lru[i] = static_cast<int16_t>(i % static_cast<size_t>(s.hot_size));
      }
    }
    return;
  }
  for (int32_t i = random->Below(4); i > 0; --i) {
    const auto at = static_cast<size_t>(random->Below(static_cast<int32_t>(a->lru.size())));
    const auto region_start = at / s.hot_size * s.hot_size;
    auto other = region_start + random->Below(s.hot_size);
    for (int32_t tries = 8; tries > 0 && a->owner[other] < 0; --tries) {
      other = region_start + random->Below(s.hot_size);
    }
    int16_t entry = a->lru[other];  // a second occurrence
    if (random->OneIn(3)) entry = static_cast<int16_t>(s.hot_size + random->Below(100));
    if (random->OneIn(4)) entry = static_cast<int16_t>(-1 - random->Below(32768));
    const int32_t owner = random->OneIn(6) ? -5 : a->owner[other];  // perhaps owned twice
    const bool hits_owner = random->OneIn(2);
    const auto score = static_cast<uint8_t>(random->Next());  // any is valid
    for (GroupFixture* group : {a, b}) {
      if (!group->score.empty()) group->score[at] = score;
      // A slot that the kept row does not hold, or none.
      if (!group->kept.empty()) group->kept[at % group->kept.size()] = owner;
      if (hits_owner) {
        group->ForgetOwners(static_cast<int32_t>(at) / s.hot_size);
        group->owner[at] = owner;
      } else {
        group->lru[at] = entry;
      }
    }
  }
}

// The optional outputs stay away from the implementation, and keep their poison; so does an input
// that says nothing.
Implementation WithoutOptional(const Implementation& implementation) {
  Implementation without = implementation;
  without.swap_in = [implementation](const SwapInParams& params) {
    SwapInParams p = params;
    p.miss_mask = nullptr;
    p.valid_counts = nullptr;
    p.plan = {};
    p.stats = nullptr;
    const auto is_none = [](int32_t slot) { return slot < 0; };
    if (std::all_of(p.newest_slot, p.newest_slot + p.num_rows, is_none)) p.newest_slot = nullptr;
    implementation.swap_in(p);
  };
  return without;
}

// Where rows are shared: that many fewer bytes crossed PCIe, and no row was shared that was not
// placed. Only where every row was placed by a swap-in that copies is the number of rows known.
std::string WrongSharing(const GroupFixture& expected, const GroupFixture& actual) {
  const Counts a = expected.counts(), b = actual.counts();
  const int64_t shared = b[Counter::kRowsShared];
  int64_t bytes_per_row = 0;
  for (const RowLayout& layout : actual.layouts()) bytes_per_row += RowBytes(layout);
  const int64_t saved = a[Counter::kBytesCopied] - b[Counter::kBytesCopied];
  const bool is_known = actual.layer_count() != 1;
  if (shared >= 0 && shared <= b[Counter::kRowsCopied] &&
      (is_known ? saved == shared * bytes_per_row : saved >= shared * bytes_per_row)) {
    return "";
  }
  return "shared rows: " + std::to_string(shared) + " of " +
         std::to_string(b[Counter::kRowsCopied]) + ", but " + std::to_string(saved) +
         " bytes fewer";
}

// Everything that both must have in common, and what a step must leave in order.
std::string Disagreement(const GroupFixture& expected, const GroupFixture& actual) {
  std::string text = Difference(expected, actual);
  if (text.empty()) text = WrongSharing(expected, actual);
  if (text.empty()) text = actual.GuardDamage();
  if (text.empty() && Imbalance(actual.stats) != 0) text = "the statistics are left half-way";
  return text;
}

// A backup from tensors or, as in decode, of newest rows, for PlayLargeCalls().
struct LargeBackup {
  LargeBackup(Random* random, const GroupFixture& group) : from_tensors(random->OneIn(2)) {
    const GroupShape& s = group.shape();
    const int32_t count = 1 + random->Below(2500);
    real_rows = random->OneIn(3) ? random->Below(count + 1) : count;
    const int32_t slots_used = random->OneIn(2) ? 40 : s.slot_count + 3;
    for (int32_t row = 0; row < count; ++row) {
      requests.push_back(random->Below(s.region_count + 2) - 1);
      slots.push_back(random->Below(slots_used) - 1);
      source_rows.push_back(random->Below(kTensorRows + 2) - 1);
    }
    for (const RowLayout& layout : group.layouts()) {
      tensors.emplace_back(StorageBytes(layout, kTensorRows), /*sparse=*/false);
      for (int64_t b = 0; b < tensors.back().size(); ++b) {
        tensors.back().data()[b] = static_cast<uint8_t>(random->Next());
      }
      sources.push_back(tensors.back().data());
    }
  }

  BackupParams For(GroupFixture* group) const {
    BackupParams p = group->Backup();
    p.num_rows = static_cast<int32_t>(slots.size());
    p.num_real_rows = &real_rows;
    p.row_to_request = requests.data();
    p.slots = slots.data();
    if (!from_tensors) return p;
    p.source_rows = source_rows.data();
    p.sources = sources.data();
    p.source_layouts = group->layouts().data();
    p.source_row_count = kTensorRows;
    return p;
  }

  static constexpr int32_t kTensorRows = 300;
  bool from_tensors;
  int32_t real_rows;
  std::vector<int32_t> requests, slots, source_rows;
  std::vector<ByteBuffer> tensors;
  std::vector<const uint8_t*> sources;
};

}  // namespace

std::string PlayParity(const ParityCase& parity_case, uint64_t seed, int32_t steps,
                       const Implementation& reference, const Implementation& subject) {
  GroupFixture expected(parity_case.options), actual(parity_case.options);
  RandomSteps random_steps(seed, &expected);
  CopyInputs(expected, &actual);
  Random mischief(seed);
  const Implementation players[] = {parity_case.no_plan ? WithoutOptional(reference) : reference,
                                    parity_case.no_plan ? WithoutOptional(subject) : subject};
  for (int32_t step = 0; step < steps; ++step) {
    Round round = random_steps.Next();
    // A replay needs a plan, and at least one layer.
    round.replay &= !parity_case.no_plan && expected.layer_count() > 0;
    if (parity_case.corrupt) Corrupt(&mischief, &expected, &actual);
    Play(round, players[0], &expected);
    Play(round, players[1], &actual);
    const std::string text = Disagreement(expected, actual);
    if (text.empty()) continue;
    return parity_case.name + " seed " + std::to_string(seed) + " step " + std::to_string(step) +
           " of " + subject.name + ", expected and actual " + text;
  }
  return "";
}

std::string PlayLargeCalls(uint64_t seed, int32_t calls, const Implementation& reference,
                           const Implementation& subject) {
  GroupOptions options;
  options.shape = {.top_k = 8,
                   .hot_size = 1100,
                   .region_count = 4,
                   .rows_per_request = 3,
                   .block_size = 2,
                   .slot_count = 16384,
                   .max_blocks = 8,
                   .policy = EvictionPolicy::kAged};
  options.layouts = {Contiguous(48), SplitPage(16, 4, 4, 96)};
  options.tracking = true;
  GroupFixture expected(options), actual(options);
  Random random(seed);
  for (int32_t call = 0; call < calls; ++call) {
    // Owners in all regions, so that there is something to drop.
    std::fill(actual.index.begin(), actual.index.end(), uint16_t{0});
    for (size_t i = 0; i < expected.owner.size(); ++i) {
      expected.owner[i] = actual.owner[i] =
          random.Below(random.OneIn(2) ? 60 : options.shape.slot_count) - 1;
    }
    for (size_t i = 0; i < expected.kept.size() && random.OneIn(2); ++i) {
      expected.kept[i] = actual.kept[i] = random.Below(60) - 1;
    }
    const LargeBackup backup(&random, expected);
    std::vector<int32_t> blocks(random.OneIn(2) ? 1 + random.Below(70) : random.Below(5000));
    for (int32_t& block : blocks) {
      block = random.Below(random.OneIn(2) ? 20 : options.shape.slot_count / 2);
    }
    for (const int32_t block : blocks) {
      ++expected.block_generation[block];
      ++actual.block_generation[block];
    }
    reference.backup(backup.For(&expected));
    subject.backup(backup.For(&actual));
    reference.invalidate(expected.Invalidate(blocks));
    subject.invalidate(actual.Invalidate(blocks));
    const std::string text = Disagreement(expected, actual);
    if (!text.empty()) {
      return "large calls, seed " + std::to_string(seed) + " call " + std::to_string(call) +
             " of " + subject.name + ", expected and actual " + text;
    }
  }
  return "";
}

}  // namespace kvtier::testing
