// What benchmarks compare with must do the same work: owners, orders, indices and rows are those of
// the reference. On the simulated GPU; on a real one the benchmark checks every step itself.
#include "tests/gpu/design_a.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/group_fixture.h"
#include "kernels/testing/implementation.h"
#include "kernels/testing/random_steps.h"
#include "tests/gpu/simt/simt.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kRegions = 3, kBlocksOfRegion = 40, kBlockSize = 8;

GroupOptions Options(int32_t top_k, int32_t hot_size) {
  GroupOptions options;
  options.shape = {.top_k = top_k,
                   .hot_size = hot_size,
                   .region_count = kRegions,
                   .block_size = kBlockSize,
                   .slot_count = kRegions * kBlocksOfRegion * kBlockSize,
                   .max_blocks = kBlocksOfRegion};
  options.layouts = {Contiguous(656)};
  options.num_rows = kRegions + 1;
  options.positions = true;
  return options;
}

// Regions in another order than rows, and a padding row in between.
void LayOut(GroupFixture* group) {
  for (int32_t i = 0; i < kRegions * kBlocksOfRegion; ++i) {
    // 7 and 120 have no common divisor: a permutation.
    group->block_table[i] = i * 7 % (kRegions * kBlocksOfRegion);
  }
  group->row_to_request = {2, kNone, 0, 1};
}

// Half of the positions are those of the step before; some are masked, repeated or newest.
void Draw(Random* random, GroupFixture* group) {
  const int32_t positions = kBlocksOfRegion * kBlockSize;
  for (int32_t& position : group->topk) {
    if (random->OneIn(2)) position = random->OneIn(9) ? kNone : random->Below(positions);
  }
  for (int32_t row = 0; row < group->num_rows(); ++row) {
    const int32_t region = group->row_to_request[row];
    group->newest_slot[row] = kNone;
    if (region < 0 || random->OneIn(3)) continue;
    const int32_t block = group->block_table[region * kBlocksOfRegion + random->Below(2)];
    group->newest_slot[row] = block * kBlockSize + random->Below(kBlockSize);
  }
}

class DesignATest : public ::testing::TestWithParam<std::pair<int32_t, int32_t>> {};

TEST_P(DesignATest, LeavesWhatTheReferenceLeaves) {
  const auto [top_k, hot_size] = GetParam();
  GroupFixture expected(Options(top_k, hot_size)), actual(Options(top_k, hot_size));
  LayOut(&expected);
  LayOut(&actual);
  Random random(static_cast<uint64_t>(hot_size));
  for (uint64_t step = 0; step < 30; ++step) {
    SCOPED_TRACE(step);
    Draw(&random, &expected);
    CopyInputs(expected, &actual);
    actual.topk = expected.topk;
    actual.newest_slot = expected.newest_slot;
    expected.PoisonOutputs();
    actual.PoisonOutputs();
    Reference().swap_in(expected.SwapIn());
    simt::SetGpu({.seed = step});
    ASSERT_EQ(cuda::DesignA(actual.SwapIn(), nullptr), cudaSuccess);
    ASSERT_EQ(actual.hot_indices, expected.hot_indices);
    ASSERT_EQ(actual.lru, expected.lru);
    ASSERT_EQ(actual.owner, expected.owner);
    for (int32_t row = 0; row < kRegions * actual.shape().region_stride; ++row) {
      ASSERT_EQ(actual.HotRow(0, row), expected.HotRow(0, row)) << row;
    }
    ASSERT_EQ(actual.GuardDamage(), "");
  }
  EXPECT_GT(expected.counts()[Counter::kHits], 0);
  EXPECT_GT(expected.counts()[Counter::kMisses], 0);
  EXPECT_GT(expected.counts()[Counter::kNewest], 0);
  EXPECT_GT(expected.counts()[Counter::kDuplicates], 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DesignATest,
                         ::testing::Values(std::pair(8, 16), std::pair(100, 100),
                                           std::pair(129, 300), std::pair(1100, 2300)),
                         [](const auto& info) {
                           return "Hot" + std::to_string(info.param.second);
                         });

TEST(DesignALaunch, RefusesWhatItDoesNotServe) {
  GroupFixture group(Options(8, 16));
  SwapInParams params = group.SwapIn();
  params.layer_count = 0;
  EXPECT_EQ(cuda::DesignA(params, nullptr), cudaErrorInvalidValue);
  params = group.SwapIn();
  params.shape.hot_size = kHotSizeMax;
  params.shape.top_k = kHotSizeMax;
  EXPECT_EQ(cuda::DesignA(params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtier::testing
