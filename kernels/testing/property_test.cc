// More than 100,000 random steps over a grid of shapes: after every one the invariants hold, and
// all implementations agree in every bit.
#include "gtest/gtest.h"
#include "kernels/testing/random_steps.h"
#include "kernels/testing/step_checker.h"

namespace kvtier::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int32_t kStepsPerShape = 1000;
#else
constexpr int32_t kStepsPerShape = 6500;
#endif

struct Grid {
  const char* name;
  GroupOptions options;
};

void PrintTo(const Grid& grid, std::ostream* out) { *out << grid.name; }

std::vector<Grid> Grids() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48);
  const RowLayout split = SplitPage(16, 4, 4, 96), wide = SplitPage(32, 8, 64, 2576);
  return {
      {"one_of_one", {Shape(1, 1, 1, 1, 1, 4, 4), {plain}, 1}},
      {"hot_equals_top_k", {Shape(7, 7, 2, 1, 4, 64, 8), {plain, padded}, 3, true}},
      {"worked_example", {Shape(8, 16, 3, 1, 8, 120, 6), {padded}, 4, false, true}},
      {"below_a_warp", {Shape(31, 63, 2, 1, 16, 288, 10), {plain, split}, 2, true, true}},
      {"a_warp", {Shape(32, 64, 2, 1, 8, 256, 20), {split}, 2, true}},
      {"above_a_warp", {Shape(33, 67, 3, 1, 16, 480, 12), {split, plain}, 4, true, true}},
      {"odd_blocks", {Shape(16, 40, 2, 1, 7, 140, 12), {plain}, 2, true, true}},
      {"two_warps", {Shape(64, 129, 2, 1, 32, 512, 8), {wide}, 3, false, true}},
      {"large_pool", {Shape(24, 48, 4, 1, 64, 4096, 20), {plain}, 4, true, true}},
      {"many_regions", {Shape(4, 9, 9, 1, 2, 144, 9), {plain, plain, split}, 11, true}},
      // Several rows of a request in one call (speculative decoding).
      {"two_rows", {Shape(8, 16, 2, 2, 8, 96, 7), {plain}, 4, true, true}},
      {"three_rows", {Shape(11, 37, 2, 3, 4, 128, 18), {split, padded}, 7, false, true}},
      {"four_rows", {Shape(16, 64, 2, 4, 16, 320, 12), {padded}, 8, true}},
      {"five_short_rows", {Shape(3, 20, 3, 5, 4, 96, 9), {split}, 15, true, true}},
      // With scores.
      {"aged_one", {Aged(Shape(1, 1, 1, 1, 1, 4, 4)), {plain}, 1}},
      {"aged", {Aged(Shape(8, 16, 3, 1, 8, 120, 6)), {padded}, 4, false, true}},
      {"aged_above_a_warp",
       {Aged(Shape(33, 67, 3, 1, 16, 480, 12)), {split, plain}, 4, true, true}},
      {"aged_rarely_full", {Aged(Shape(16, 200, 2, 1, 7, 140, 12)), {plain}, 2, true, true}},
      {"aged_three_rows", {Aged(Shape(11, 37, 2, 3, 4, 128, 18)), {split, padded}, 7, false, true}},
      {"aged_union_too_large", {Aged(Shape(8, 10, 2, 2, 8, 96, 7)), {plain}, 4, true, true}},
      // More lookups than hot slots, which creating a cache refuses: still no row is lost, found
      // twice or made up.
      {"union_too_large", {Shape(8, 10, 2, 2, 8, 96, 7), {plain}, 4, true, true}},
      {"top_k_too_large", {Shape(9, 4, 2, 1, 8, 96, 7), {split}, 2, false}},
  };
}

class PropertyTest : public ::testing::TestWithParam<Grid> {};

TEST_P(PropertyTest, InvariantsHoldAndImplementationsAgree) {
  for (uint64_t seed : {1, 2}) {
    GroupFixture reference(GetParam().options);
    RandomSteps steps(seed, &reference);
    const std::vector<Implementation> implementations = HostImplementations();
    std::vector<GroupFixture> others;
    for (size_t i = 1; i < implementations.size(); ++i) {
      others.emplace_back(GetParam().options);
      CopyInputs(reference, &others.back());
    }
    for (int32_t i = 0; i < kStepsPerShape / 2; ++i) {
      const Round round = steps.Next();
      Prepare(round, implementations[0], &reference);
      const StepSnapshot before(reference);
      Step(round, implementations[0], &reference);
      ASSERT_EQ(CheckStep(before, reference), "")
          << GetParam().name << " seed " << seed << " step " << i;
      Finish(round, implementations[0], &reference);
      for (size_t other = 0; other < others.size(); ++other) {
        Play(round, implementations[other + 1], &others[other]);
        ASSERT_EQ(Difference(reference, others[other]), "")
            << implementations[other + 1] << " on " << GetParam().name << " seed " << seed
            << " step " << i;
      }
    }
    // The steps were worth it: everything that can be counted was.
    const Counts counts = reference.counts();
    EXPECT_GT(counts[Counter::kHits], 0);
    EXPECT_GT(counts[Counter::kMisses], 0);
    EXPECT_GT(counts[Counter::kNewest] + counts[Counter::kDuplicates], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PropertyTest, ::testing::ValuesIn(Grids()),
                         [](const auto& info) { return info.param.name; });

// Counters that a run over the grid must have moved, so that no branch goes untested unnoticed.
TEST(PropertyTest, EveryCounterMoves) {
  Counts total;
  const Implementation reference = Reference();
  for (const Grid& grid : Grids()) {
    GroupFixture group(grid.options);
    RandomSteps steps(/*seed=*/3, &group);
    for (int32_t i = 0; i < 300; ++i) Play(steps.Next(), reference, &group);
    total += group.counts();
  }
  for (int32_t c = 0; c < kCounterCount; ++c) {
    if (static_cast<Counter>(c) == Counter::kStateRepairs) continue;  // needs corruption
    if (static_cast<Counter>(c) == Counter::kRowsShared) continue;    // only GPUs share
    EXPECT_GT(total.values[c], 0) << "counter " << c;
  }
}

}  // namespace
}  // namespace kvtier::testing
