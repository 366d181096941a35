// Slots of positions, side by side and one by one, as layout.h has them.
#include "kernels/cpu/row_slots.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::cpu {
namespace {

using testing::Random;

constexpr int32_t kRegions = 3, kRegion = 1, kMaxBlocks = 5;

struct Case {
  int32_t block_size;
  int32_t length;  // -1: unknown
  bool has_table = true;
};

class RowSlotsTest : public ::testing::TestWithParam<Case> {};

TEST_P(RowSlotsTest, AreThoseOfTheContract) {
  const auto [block_size, length, has_table] = GetParam();
  Random random(5);
  std::vector<int32_t> table(kRegions * kMaxBlocks), lengths(kRegions, length);
  for (int32_t& block : table) block = random.OneIn(4) ? kNone : random.Below(1000);
  table[kRegion * kMaxBlocks] = INT32_MAX;  // its slots are no int32, unless blocks have one
  table[kRegion * kMaxBlocks + 1] = INT32_MIN;
  SwapInParams params;
  params.shape = {.region_count = kRegions, .block_size = block_size, .max_blocks = kMaxBlocks};
  params.block_table = has_table ? table.data() : nullptr;
  params.sequence_lengths = lengths.data();
  for (const int32_t count : {0, 1, 15, 16, 17, 200}) {
    std::vector<int32_t> topk(count), expected(count);
    for (int32_t i = 0; i < count; ++i) {
      topk[i] = random.Below(block_size * (kMaxBlocks + 2)) - block_size;
      if (random.OneIn(10)) topk[i] = static_cast<int32_t>(random.Next());
      const int32_t slot = has_table ? ResolveSlot(table.data() + kRegion * kMaxBlocks, kMaxBlocks,
                                                   block_size, length, topk[i])
                                     : topk[i];
      expected[i] = slot < 0 ? kMaskedSlot : slot;
    }
    for (const int32_t lanes : {1, kPositionLanes}) {
      std::vector<int32_t> slots(count + 1, 77);
      ResolveSlots(params, kRegion, topk.data(), count, slots.data(), lanes);
      EXPECT_EQ(slots.back(), 77);
      slots.pop_back();
      EXPECT_EQ(slots, expected) << "lanes " << lanes << ", positions " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RowSlotsTest,
                         ::testing::Values(Case{64, kNone}, Case{64, 100}, Case{64, 0},
                                           Case{1, kNone}, Case{16, 70}, Case{48, kNone},
                                           Case{48, 100}, Case{64, kNone, false}));

}  // namespace
}  // namespace kvtier::cpu
