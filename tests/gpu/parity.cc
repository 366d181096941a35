#include "tests/gpu/parity.h"

#include <algorithm>
#include <numeric>

#include "kernels/stats_block.h"
#include "kernels/testing/byte_buffer.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

GroupShape Shape(int32_t top_k, int32_t hot_size, int32_t regions, int32_t rows_per_request,
                 int32_t block_size, int32_t slot_count, int32_t max_blocks) {
  GroupShape shape;
  shape.top_k = top_k;
  shape.hot_size = hot_size;
  shape.region_count = regions;
  shape.rows_per_request = rows_per_request;
  shape.block_size = block_size;
  shape.slot_count = slot_count;
  shape.max_blocks = max_blocks;
  return shape;
}

GroupShape Aged(GroupShape shape) {
  shape.policy = EvictionPolicy::kAged;
  return shape;
}

// `count` layers of different row bytes.
std::vector<RowLayout> ManyLayers(int32_t count) {
  std::vector<RowLayout> layouts;
  for (int32_t l = 0; l < count; ++l) {
    switch (l % 5) {
      case 0:
        layouts.push_back(Contiguous(16));
        break;
      case 1:
        layouts.push_back(Contiguous(656));
        break;
      case 2:
        layouts.push_back(Contiguous(64, 96));
        break;
      case 3:
        layouts.push_back(SplitPage(48, 12, 16, 1024));
        break;
      default:
        layouts.push_back(Contiguous(576));
        break;
    }
  }
  return layouts;
}

// What a stray writer may do to the state, the same to both groups. Damage lasts until the next
// call puts everything right again, as the admission of another request does.
void Corrupt(Random* random, GroupFixture* a, GroupFixture* b) {
  const GroupShape& s = a->shape();
  if (random->OneIn(4)) {
    for (GroupFixture* group : {a, b}) {
      std::fill(group->index.begin(), group->index.end(), uint16_t{0});
      std::fill(group->owner.begin(), group->owner.end(), kNone);
      std::fill(group->score.begin(), group->score.end(), uint8_t{0});
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
      if (hits_owner) {
        group->ForgetIndex(static_cast<int32_t>(at) / s.hot_size);
        group->owner[at] = owner;
      } else {
        group->lru[at] = entry;
      }
    }
  }
}

// The optional outputs stay away from the implementation, and keep their poison.
Implementation WithoutOptionalOutputs(const Implementation& implementation) {
  Implementation without = implementation;
  without.swap_in = [implementation](const SwapInParams& params) {
    SwapInParams p = params;
    p.miss_mask = nullptr;
    p.valid_counts = nullptr;
    p.plan = {};
    p.stats = nullptr;
    implementation.swap_in(p);
  };
  return without;
}

// Everything that both must have in common, and what a step must leave in order.
std::string Disagreement(const GroupFixture& expected, const GroupFixture& actual) {
  std::string text = Difference(expected, actual);
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

// The same with scores.
std::vector<ParityCase> SmallAgedCases() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48),
                  split = SplitPage(16, 4, 4, 96);
  return {
      {"aged_one", {Aged(Shape(1, 1, 1, 1, 1, 4, 4)), {plain}, 1}, 60, 32},
      {"aged", {Aged(Shape(8, 16, 3, 1, 8, 120, 6)), {padded}, 4, false, true}, 120, 896},
      {"aged_above_a_warp",
       {Aged(Shape(33, 67, 3, 1, 16, 480, 12)), {plain}, 4, true, true},
       80,
       96},
      {"aged_three_rows",
       {Aged(Shape(11, 37, 2, 3, 4, 128, 18)), {split, padded}, 7, false, true},
       120,
       32},
      {"aged_union_too_large",
       {Aged(Shape(8, 10, 2, 2, 8, 96, 7)), {plain}, 4, true, true},
       120,
       64},
      {"aged_many_words",
       {Aged(Shape(300, 2300, 1, 1, 32, 4096, 8)), {plain}, 1, false, true},
       20,
       64},
      {"aged_corrupt",
       {Aged(Shape(16, 40, 2, 2, 8, 96, 7)), {plain}, 4, true, true},
       150,
       64,
       false,
       true},
  };
}

std::vector<ParityCase> LargeAgedCases() {
  const RowLayout plain = Contiguous(16), half = Contiguous(576), dsa = Contiguous(656);
  return {
      {"aged_4096",
       {Aged(Shape(2048, 4096, 2, 1, 64, 16384, 128)), {dsa}, 3, true, true},
       40,
       1024},
      {"aged_10240",
       {Aged(Shape(2048, 10240, 2, 1, 64, 24576, 192)), {half}, 2, true, true},
       30,
       1024},
      {"aged_32768",
       {Aged(Shape(2048, 32768, 1, 1, 64, 65536, 1024)), {plain}, 1, false, true},
       20,
       1024},
      {"aged_corrupt_4096",
       {Aged(Shape(2048, 4096, 2, 1, 64, 12288, 96)), {plain}, 2, false, true},
       40,
       1024,
       false,
       true},
  };
}

}  // namespace

std::vector<ParityCase> SmallParityCases() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48), dsa = Contiguous(656);
  const RowLayout split = SplitPage(16, 4, 4, 96), wide = SplitPage(32, 8, 64, 2576);
  std::vector<ParityCase> cases = {
      {"one_of_one", {Shape(1, 1, 1, 1, 1, 4, 4), {plain}, 1}, 120, 32},
      {"two_of_two", {Shape(2, 2, 2, 1, 2, 16, 4), {dsa}, 2}, 120, 96},
      {"hot_equals_top_k", {Shape(7, 7, 2, 1, 4, 64, 8), {plain, padded}, 3, true}, 120, 64},
      {"no_positions", {Shape(0, 5, 2, 1, 4, 64, 8), {plain}, 3, false, true}, 60, 96},
      {"no_layers", {Shape(6, 12, 2, 1, 4, 64, 8), {}, 3, false, true}, 60, 96, true},
      {"worked_example", {Shape(8, 16, 3, 1, 8, 120, 6), {padded}, 4, false, true}, 120, 896},
      {"below_a_warp", {Shape(31, 63, 2, 1, 16, 288, 10), {plain, split}, 2, true, true}, 80, 32},
      {"a_warp", {Shape(32, 64, 2, 1, 8, 256, 20), {split}, 2, true}, 80, 96},
      {"above_a_warp", {Shape(33, 67, 3, 1, 16, 480, 12), {dsa, plain}, 4, true, true}, 80, 96},
      {"odd_blocks", {Shape(16, 40, 2, 1, 7, 140, 12), {plain}, 2, true, true}, 80, 1024},
      {"two_warps", {Shape(64, 129, 2, 1, 32, 512, 8), {wide}, 3, false, true}, 80, 64},
      {"many_words", {Shape(300, 1100, 1, 1, 32, 2048, 8), {plain}, 1, false, true}, 20, 32},
      {"more_words_than_threads",
       {Shape(300, 2300, 1, 1, 32, 4096, 8), {plain}, 1, false, true},
       20,
       64,
       false,
       true},
      {"many_regions", {Shape(4, 9, 9, 1, 2, 144, 9), {plain, plain, split}, 11, true}, 60, 96},
      // Enough rows for copies in the order of addresses.
      {"many_small_requests", {Shape(8, 16, 40, 1, 4, 640, 6), {plain}, 44, true, true}, 60, 64},
      {"many_tiny_requests", {Shape(4, 8, 36, 1, 4, 288, 6), {split}, 36, true}, 60, 96},
      {"more_rows_than_regions", {Shape(4, 9, 2, 2, 2, 64, 9), {plain}, 40, true}, 60, 32},
      {"two_rows", {Shape(8, 16, 2, 2, 8, 96, 7), {plain}, 4, true, true}, 120, 96},
      {"three_rows", {Shape(11, 37, 2, 3, 4, 128, 18), {split, padded}, 7, false, true}, 120, 32},
      {"four_rows", {Shape(16, 64, 2, 4, 16, 320, 12), {padded}, 8, true}, 80, 224},
      {"five_short_rows", {Shape(3, 20, 3, 5, 4, 96, 9), {split}, 15, true, true}, 80, 96},
      {"rows_of_two_words", {Shape(40, 128, 2, 3, 8, 256, 16), {plain}, 6, true}, 60, 96},
      {"union_too_large", {Shape(8, 10, 2, 2, 8, 96, 7), {plain}, 4, true, true}, 120, 64},
      {"top_k_too_large", {Shape(9, 4, 2, 1, 8, 96, 7), {split}, 2, false}, 120, 32},
      {"without_a_plan", {Shape(8, 16, 3, 2, 8, 120, 6), {padded}, 6, false, true}, 80, 96, true},
      {"layers_61", {Shape(8, 16, 2, 1, 8, 64, 8), ManyLayers(61), 2, false, true}, 10, 96},
      {"layers_300", {Shape(4, 8, 1, 1, 8, 32, 8), ManyLayers(300), 1, false, true}, 4, 64},
      {"corrupt_small",
       {Shape(5, 8, 2, 1, 8, 64, 8), {plain}, 2, true, true},
       250,
       96,
       false,
       true},
      {"corrupt_union",
       {Shape(16, 40, 2, 2, 8, 96, 7), {plain}, 4, true, true},
       150,
       64,
       false,
       true},
      {"corrupt_words",
       {Shape(40, 131, 2, 1, 8, 256, 7), {plain}, 2, false, true},
       100,
       32,
       false,
       true},
  };
  const std::vector<ParityCase> aged = SmallAgedCases();
  cases.insert(cases.end(), aged.begin(), aged.end());
  return cases;
}

std::vector<ParityCase> LargeParityCases() {
  const RowLayout dsa = Contiguous(656), mla = Contiguous(1152), half = Contiguous(576);
  const RowLayout plain = Contiguous(16), large = Contiguous(4096), v4 = DeepSeekV4Layout();
  std::vector<ParityCase> cases = {
      {"hot_512_v4", {Shape(512, 512, 3, 1, 64, 6144, 32), {v4}, 4, true, true}, 60, 1024},
      {"hot_1000", {Shape(500, 1000, 3, 1, 64, 6144, 32), {dsa}, 4, true, true}, 60, 896},
      {"hot_1024_v4_rows_2", {Shape(512, 1024, 2, 2, 64, 6144, 48), {v4}, 4, true, true}, 60, 1024},
      {"hot_4096", {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true, true}, 40, 1024},
      {"hot_4096_small_blocks", {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true}, 20, 32},
      {"hot_4096_mla",
       {Shape(2048, 4096, 2, 1, 64, 12288, 96), {mla, half}, 2, false, true},
       30,
       1024},
      {"hot_equals_top_k", {Shape(2048, 2048, 4, 1, 64, 16384, 64), {plain}, 5, true}, 60, 1024},
      {"hot_8192_rows_4",
       {Shape(2048, 8192, 1, 4, 64, 32768, 512), {dsa}, 4, true, true},
       30,
       1024},
      {"hot_10240", {Shape(2048, 10240, 2, 1, 64, 24576, 192), {half}, 2, true, true}, 30, 1024},
      {"hot_32768", {Shape(2048, 32768, 1, 1, 64, 65536, 1024), {plain}, 1, false, true}, 20, 1024},
      {"hot_32768_top_k_16384",
       {Shape(16384, 32768, 1, 1, 64, 65536, 1024), {dsa}, 1, false},
       12,
       1024},
      {"hot_equals_top_k_32768",
       {Shape(32768, 32768, 1, 1, 64, 131072, 2048), {plain}, 2},
       12,
       960},
      {"row_bytes_4096", {Shape(256, 512, 4, 1, 64, 4096, 16), {large}, 5, true, true}, 60, 1024},
      {"layers_61_mixed",
       {Shape(64, 128, 2, 1, 16, 512, 16), ManyLayers(61), 3, true, true},
       40,
       1024},
      {"corrupt_4096",
       {Shape(2048, 4096, 2, 1, 64, 12288, 96), {plain}, 2, false, true},
       40,
       1024,
       false,
       true},
      {"corrupt_rows_3",
       {Shape(300, 1000, 2, 3, 64, 6144, 48), {plain}, 6, true, true},
       60,
       96,
       false,
       true},
      {"regions_64", {Shape(128, 256, 64, 1, 16, 16384, 16), {dsa}, 70, true, true}, 40, 1024},
      {"no_plan_4096",
       {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true, true},
       20,
       1024,
       true},
  };
  const std::vector<ParityCase> aged = LargeAgedCases();
  cases.insert(cases.end(), aged.begin(), aged.end());
  return cases;
}

std::string PlayParity(const ParityCase& parity_case, uint64_t seed, int32_t steps,
                       const Implementation& reference, const Implementation& subject) {
  GroupFixture expected(parity_case.options), actual(parity_case.options);
  RandomSteps random_steps(seed, &expected);
  CopyInputs(expected, &actual);
  Random mischief(seed);
  const Implementation players[] = {
      parity_case.no_plan ? WithoutOptionalOutputs(reference) : reference,
      parity_case.no_plan ? WithoutOptionalOutputs(subject) : subject};
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
  GroupOptions options = {Shape(8, 1100, 4, 3, 2, 16384, 8),
                          {Contiguous(48), SplitPage(16, 4, 4, 96)}};
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
