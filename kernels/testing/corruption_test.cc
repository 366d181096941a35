// State that somebody else wrote over: no step touches memory that is not its own (sanitizers and
// guards look), and all implementations make the same of it.
#include <set>

#include "gtest/gtest.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

void Corrupt(Random* random, GroupFixture* group) {
  const auto slots = static_cast<int32_t>(group->lru.size());
  for (int32_t i = random->Below(4); i > 0; --i) {
    const int32_t at = random->Below(slots);
    switch (random->Below(group->score.empty() ? 5 : 8)) {
      case 0:  // anything
        group->lru[at] = static_cast<int16_t>(random->Next());
        break;
      case 1:  // in range, but there already
        group->lru[at] = group->lru[random->Below(slots)];
        break;
      case 2:  // just outside
        group->lru[at] = static_cast<int16_t>(group->shape().hot_size);
        break;
      case 3:
        group->owner[at] = static_cast<int32_t>(random->Next());
        break;
      case 4:  // owned twice
        group->owner[at] = group->owner[random->Below(slots)];
        break;
      case 5:  // any byte is a score
        group->score[at] = static_cast<uint8_t>(random->Next());
        break;
      case 6:  // anything
        group->kept[at % group->kept.size()] = static_cast<int32_t>(random->Next());
        break;
      case 7:  // a slot whose row it does not hold
        group->kept[at % group->kept.size()] = group->owner[random->Below(slots)];
        break;
    }
  }
}

// No hot row was given to two misses of the step.
void ExpectOwnHotRows(const GroupFixture& group) {
  std::set<int32_t> given;
  for (int32_t row = 0; row < group.num_rows(); ++row) {
    for (int32_t i = 0; i < group.plan_counts[row]; ++i) {
      const int32_t hot_row = group.plan_hot_rows[row * group.shape().top_k + i];
      ASSERT_TRUE(hot_row < 0 || given.insert(hot_row).second) << hot_row;
    }
  }
}

void RunCorrupted(const GroupOptions& options, uint64_t seed) {
  const std::vector<Implementation> implementations = HostImplementations();
  std::vector<GroupFixture> groups;
  for (size_t i = 0; i < implementations.size(); ++i) groups.emplace_back(options);
  RandomSteps steps(seed, &groups[0]);
  Random random(seed + 1000);
  for (int32_t step = 0; step < 1500; ++step) {
    const Round round = steps.Next();
    if (step % 8 == 0) Corrupt(&random, &groups[0]);
    for (size_t i = 1; i < groups.size(); ++i) {
      if (step == 0) CopyInputs(groups[0], &groups[i]);
      groups[i].lru = groups[0].lru;
      groups[i].owner = groups[0].owner;
      groups[i].score = groups[0].score;
      groups[i].kept = groups[0].kept;
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      Play(round, implementations[i], &groups[i]);
      ASSERT_EQ(groups[i].GuardDamage(), "") << implementations[i] << " seed " << seed;
      ASSERT_EQ(Difference(groups[0], groups[i]), "")
          << implementations[i] << " seed " << seed << " step " << step;
    }
    ExpectOwnHotRows(groups[0]);
    for (int32_t region = 0; region < options.shape.region_count && step % 50 == 0; ++region) {
      for (size_t i = 0; i < groups.size(); ++i) {
        implementations[i].reset_region(groups[i].ResetRegion(region));
      }
    }
  }
  const Counts counts = groups[0].counts();
  // With scores corrupt entries are drawn last, which these steps hardly ever come to.
  const bool repairs_expected = options.shape.policy == EvictionPolicy::kLru;
  EXPECT_GE(counts[Counter::kStateRepairs], repairs_expected ? 1 : 0);
  EXPECT_EQ(counts[Counter::kMisses], counts[Counter::kRowsCopied] + counts[Counter::kUnsourced] +
                                          counts[Counter::kUnbackedReads] +
                                          counts[Counter::kUnplaced]);
}

void RunCorruptedShapes(EvictionPolicy policy) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    GroupOptions options;
    options.shape = {.top_k = 20,
                     .hot_size = 33,
                     .region_count = 3,
                     .block_size = 8,
                     .slot_count = 192,
                     .max_blocks = 10,
                     .policy = policy};
    options.layouts = {Contiguous(16), SplitPage(16, 4, 4, 96)};
    options.num_rows = 4;
    options.positions = seed % 2 == 0;
    options.tracking = seed % 3 == 0;
    RunCorrupted(options, seed);
    options.shape.rows_per_request = 2;
    options.shape.hot_size = 41;
    options.num_rows = 6;
    RunCorrupted(options, seed + 10);
  }
}

TEST(CorruptionTest, SameAndHarmlessEverywhere) { RunCorruptedShapes(EvictionPolicy::kLru); }

TEST(CorruptionTest, SameAndHarmlessEverywhereWithScores) {
  RunCorruptedShapes(EvictionPolicy::kAged);
}

}  // namespace
}  // namespace kvtier::testing
