// Faults seen in systems of this kind, as tests: where bytes come from and where they go.
#include <functional>

#include "kernels/testing/case_fixture.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class BytesCases : public KernelTest {};

// A slot past the pool has no source: its hot row is zero, owned by nobody, and missed again.
TEST_P(BytesCases, K09_SlotOutOfRange) {
  GroupOptions options = SmallOptions();
  options.shape.slot_count = 1728;
  Group g = WorkedExample(options);
  const Ints row = {1727, 1728, 2147483647, 200};
  EXPECT_THAT(g.StepRow(row, 150), ElementsAre(3, 5, 0, 1, -1, -1, -1, -1));
  EXPECT_TRUE(g.Holds(3, 1727));
  EXPECT_TRUE(g.IsZero(5));
  EXPECT_TRUE(g.IsZero(0));
  EXPECT_EQ(g.owner[5], kNone);
  EXPECT_EQ(g.owner[0], kNone);
  EXPECT_EQ(g.Rise(Counter::kHits), 1);
  EXPECT_EQ(g.Rise(Counter::kMisses), 3);
  EXPECT_EQ(g.Rise(Counter::kUnsourced), 2);
  EXPECT_THAT(g.miss_mask, ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(g.StepRow(row, 151), ElementsAre(3, 7, 2, 1, -1, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kMisses), 2);

  // Backups to slots that are none write nothing.
  const std::string before = g.HostRow(0, 1727);
  for (const int32_t slot : {1728, -1, 2147483647, -2147483647}) {
    g.BackupRow(0, slot, /*salt=*/1);
    EXPECT_EQ(g.Rise(Counter::kBackedUpRows), 0) << slot;
  }
  EXPECT_EQ(g.HostRow(0, 1727), before);
  EXPECT_EQ(g.GuardDamage(), "");
}

// Every size of row that models have, to the last byte and not one further.
TEST_P(BytesCases, K15_RowGeometry) {
  const std::vector<RowLayout> layouts = {
      Contiguous(16),          Contiguous(352),
      Contiguous(576),         Contiguous(656),
      Contiguous(656, 704),    Contiguous(1152),
      Contiguous(1152, 1168),  DeepSeekV4Layout(),
      SplitPage(16, 4, 4, 80), SplitPage(512, 16, 64, 33792 + 16)};
  for (size_t i = 0; i < layouts.size(); ++i) {
    GroupOptions options = SmallOptions();
    options.shape.slot_count = 256;
    options.layouts = {layouts[i]};
    Group g = MakeGroup(options);
    const Ints row = {0, 1, 63, 64, 65, 127, 254, 255};
    const Ints out = g.StepRow(row);
    for (size_t c = 0; c < row.size(); ++c) EXPECT_TRUE(g.Holds(out[c], row[c])) << i;
    // There and back again; rows beside it keep their bytes, and so does what lies between rows.
    const std::string left = g.HostRow(0, 99), right = g.HostRow(0, 101);
    g.WriteNewest(0, 100, /*salt=*/3);
    g.BackupNewest(0, 100);
    EXPECT_EQ(g.HostRow(0, 100), g.PatternRow(0, 100, 3)) << i;
    EXPECT_EQ(g.HostRow(0, 99), left) << i;
    EXPECT_EQ(g.HostRow(0, 101), right) << i;
    EXPECT_EQ(g.GuardDamage(), "") << i;
    const RowLayout& layout = layouts[i];
    for (const auto* buffer : {&g.host[0], &g.hot[0]}) {
      std::vector<bool> carried(buffer->size(), false);
      const int64_t rows = buffer == &g.host[0] ? 256 : 128;
      for (int32_t r = 0; r < rows; ++r) {
        const int64_t value = ValueOffset(layout, r);
        std::fill_n(carried.begin() + value, layout.value_bytes, true);
        if (layout.format != RowFormat::kSplitPage) continue;
        std::fill_n(carried.begin() + ScaleOffset(layout, r), layout.scale_bytes, true);
      }
      for (int64_t b = 0; b < buffer->size(); ++b) {
        if (!carried[b]) {
          ASSERT_EQ(buffer->data()[b], kCanary) << "layout " << i << " byte " << b;
        }
      }
    }
  }
}

// 656 * 3,273,604 is the first row start past 2^31.
TEST_P(BytesCases, K16_HostPoolPast32Bits) {
  GroupOptions options = SmallOptions();
  options.shape.block_size = 10;
  options.shape.slot_count = 3273610;
  options.sparse = true;
  Group g = MakeGroup(options);
  const Ints row = Range(3273602, 3273606);
  for (const int32_t slot : row) g.FillHostRow(slot);
  const Ints out = g.StepRow(row);
  EXPECT_EQ(g.Rise(Counter::kRowsCopied), 4);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(g.HotRow(0, out[i]), g.PatternRow(0, row[i]));

  for (const int32_t slot : row) g.BackupRow(0, slot, /*salt=*/50);
  for (const int32_t slot : row) EXPECT_EQ(g.HostRow(0, slot), g.PatternRow(0, slot, 50));
  const Ints again = g.StepRow(row);
  EXPECT_EQ(g.Rise(Counter::kMisses), 4);  // the backup dropped what was cached
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(g.HotRow(0, again[i]), g.PatternRow(0, row[i], 50));
}

TEST_P(BytesCases, K16_HotBufferPast32Bits) {
  GroupOptions options = SmallOptions();
  options.shape.hot_size = 4096;
  options.shape.region_count = 776;
  options.sparse = true;
  Group g = MakeGroup(options);
  ASSERT_EQ(g.shape().region_stride, 4224);
  const Ints row = Range(10, 18);
  for (const int32_t slot : row) g.FillHostRow(slot);
  const int32_t base = 775 * 4224;
  EXPECT_EQ(g.StepRows({{775, row}}), Range(base, base + 8));
  for (int32_t i = 0; i < 8; ++i) EXPECT_EQ(g.HotRow(0, base + i), g.PatternRow(0, row[i]));
  for (int32_t i = 0; i < 8; ++i) EXPECT_TRUE(g.IsZero(i));  // sparse memory nobody wrote to
  g.WriteNewest(775, 500);
  g.BackupNewest(775, 500);
  EXPECT_EQ(g.HostRow(0, 500), g.PatternRow(0, 500));
}

// Hot slots are int16 in the order: the largest buffer uses every one of them.
TEST_P(BytesCases, K17_LargestHotBuffer) {
  constexpr int32_t kTopK = 4096;
  GroupOptions options = SmallOptions();
  options.shape.top_k = kTopK;
  options.shape.hot_size = kHotSizeMax;
  options.shape.slot_count = 3 * kHotSizeMax;
  options.layouts = {Contiguous(16)};
  Group g = MakeGroup(options);
  for (int32_t begin = 0; begin < options.shape.slot_count; begin += kTopK) {
    const int32_t first = begin % kHotSizeMax;
    ASSERT_EQ(g.StepRow(Range(begin, begin + kTopK)), Range(first, first + kTopK));
  }
  EXPECT_EQ(g.Owners(0).back(), 3 * kHotSizeMax - 1);
  EXPECT_TRUE(g.Holds(kHotSizeMax - 1, 3 * kHotSizeMax - 1));
  EXPECT_EQ(g.counts()[Counter::kEvictions], 2 * kHotSizeMax);
}

// Layers of different rows, each with its own memory.
TEST_P(BytesCases, K19_EveryLayerAtItsPlace) {
  GroupOptions options = SmallOptions();
  options.layouts = {Contiguous(656), Contiguous(1152, 1168), Contiguous(128)};
  Group g = MakeGroup(options);
  const Ints row = {0, 63, 64, 1983, 1984, 2047};
  const Ints out = g.StepRow(row);
  for (int32_t l = 0; l < 3; ++l) {
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(g.HotRow(l, out[i]), g.PatternRow(l, row[i])) << l;
    }
  }
  EXPECT_EQ(g.Rise(Counter::kRowsCopied), 6);
  EXPECT_EQ(g.Rise(Counter::kBytesCopied), 6 * (656 + 1152 + 128));
  g.WriteNewest(0, 10, /*salt=*/0xA0);
  g.BackupNewest(0, 10);
  EXPECT_EQ(g.Rise(Counter::kBackedUpRows), 1);
  EXPECT_EQ(g.Rise(Counter::kBackedUpBytes), 656 + 1152 + 128);
  const int32_t index = g.StepRow({10})[0];
  for (int32_t l = 0; l < 3; ++l) EXPECT_EQ(g.HotRow(l, index), g.PatternRow(l, 10, 0xA0)) << l;
  EXPECT_EQ(g.GuardDamage(), "");
}

// Decode for 200 steps in a buffer of 16 rows: every row must come back from the host. A row that
// was assigned but never written is told from one that was.
TEST_P(BytesCases, K20_EveryRowIsBackedUp) {
  GroupOptions options = SmallOptions();
  options.tracking = true;
  Group g = MakeGroup(options);
  std::fill(g.backed_generation.begin(), g.backed_generation.end(), 0);
  for (int32_t slot = 128; slot < 329; ++slot) {
    for (int32_t l = 0; l < g.layer_count(); ++l) {
      std::fill_n(g.host[l].data() + ValueOffset(g.layouts()[l], slot), 656, uint8_t{0xEE});
    }
  }
  Random random(20);
  for (int32_t step = 0; step < 200; ++step) {
    const int32_t newest = 128 + step;
    g.WriteNewest(0, newest, /*salt=*/5);
    Ints row = {newest};
    for (int32_t i = 1; i < 8; ++i) row.push_back(128 + random.Below(step + 1));
    const Ints out = g.StepRow(row, newest);
    for (int32_t i = 0; i < 8; ++i) {
      ASSERT_EQ(g.HotRow(0, out[i]), g.PatternRow(0, row[i], 5)) << "step " << step;
    }
    g.BackupNewest(0, newest);
  }
  EXPECT_EQ(g.counts()[Counter::kBackedUpRows], 200);
  EXPECT_EQ(g.counts()[Counter::kUnbackedReads], 0);

  const int32_t unwritten = g.StepRow({328}, kNone)[0];
  EXPECT_EQ(g.Rise(Counter::kUnbackedReads), 1);
  EXPECT_TRUE(g.IsZero(unwritten));
  // Its block gets another tenant: rows that were backed are not any more.
  g.AssignBlocks({2});
  const int32_t recycled = g.StepRow({128}, kNone)[0];
  EXPECT_EQ(g.Rise(Counter::kUnbackedReads), 1);
  EXPECT_TRUE(g.IsZero(recycled));
  g.BackupRow(0, 128, /*salt=*/6);
  EXPECT_EQ(g.HotRow(0, g.StepRow({128}, kNone)[0]), g.PatternRow(0, 128, 6));
}

// Host blocks and regions are numbered apart.
TEST_P(BytesCases, K23_TwoIndexSpaces) {
  GroupOptions options = SmallOptions();
  options.shape.slot_count = 8 * 64;
  options.shape.region_count = 6;
  options.shape.max_blocks = 1;
  options.positions = true;
  Group g = MakeGroup(options);
  constexpr int32_t kRegion = 1, kBlock = 5;
  static_assert(kRegion != kBlock);
  g.block_table = {0, kBlock, 2, 3, 4, 1};
  for (int32_t position = 0; position < 16; ++position) {
    g.BackupRow(kRegion, kBlock * 64 + position, /*salt=*/position);
  }
  for (const int32_t begin : {0, 8}) {
    const Ints out = g.StepRows({{kRegion, Range(begin, begin + 8)}});
    for (int32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(g.HotRow(0, out[i]),
                g.PatternRow(0, kBlock * 64 + begin + i, static_cast<uint8_t>(begin + i)));
    }
  }
  EXPECT_TRUE(g.IsUntouched(5 * g.shape().region_stride, 6 * g.shape().region_stride));
  EXPECT_EQ(g.HostRow(0, kRegion * 64), g.PatternRow(0, kRegion * 64));
}

// Two runs, and runs with one and with two threads, agree at every step.
TEST_P(BytesCases, K24_Determinism) {
  GroupOptions options = SmallOptions();
  options.shape = {.top_k = 64,
                   .hot_size = 129,
                   .region_count = 3,
                   .block_size = 16,
                   .slot_count = 1536,
                   .max_blocks = 32};
  options.layouts = {Contiguous(32)};
  options.num_rows = 3;
  options.positions = true;
  GroupFixture once(options);
  RandomSteps steps(/*seed=*/24, &once);
  const std::vector<Implementation> implementations = {GetParam(), Cpu(1), Cpu(2)};
  std::vector<GroupFixture> others;
  for (size_t i = 0; i < implementations.size(); ++i) {
    CopyInputs(once, &others.emplace_back(options));
  }
  for (int32_t step = 0; step < 200; ++step) {
    const Round round = steps.Next();
    Play(round, GetParam(), &once);
    for (size_t i = 0; i < implementations.size(); ++i) {
      Play(round, implementations[i], &others[i]);
      ASSERT_EQ(Difference(once, others[i]), "") << implementations[i] << " step " << step;
    }
  }
}

KVTIER_INSTANTIATE(BytesCases);

}  // namespace
}  // namespace kvtier::testing
