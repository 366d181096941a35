// Where rows are, in numbers, and where 32-bit arithmetic would put them.
#include "kernels/layout.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/testing/group_fixture.h"

namespace kvtier {
namespace {

using testing::Contiguous;
using testing::DeepSeekV4Layout;

TEST(LayoutTest, ContiguousRows) {
  constexpr RowLayout kPadded = {.value_bytes = 656, .row_stride = 672};
  static_assert(RowBytes(kPadded) == 656);
  static_assert(ValueOffset(kPadded, 0) == 0);
  static_assert(ValueOffset(kPadded, 3) == 2016);
  static_assert(StorageBytes(kPadded, 5) == 3360);
  static_assert(StorageBytes(kPadded, 0) == 0);
}

TEST(LayoutTest, SplitPagesOfDeepSeekV4) {
  const RowLayout layout = DeepSeekV4Layout();
  EXPECT_EQ(RowBytes(layout), 584);
  EXPECT_EQ(ValueOffset(layout, 0), 0);
  EXPECT_EQ(ValueOffset(layout, 1), 576);
  EXPECT_EQ(ScaleOffset(layout, 0), 36864);
  EXPECT_EQ(ScaleOffset(layout, 1), 36872);
  EXPECT_EQ(ValueOffset(layout, 63), 63 * 576);
  EXPECT_EQ(ScaleOffset(layout, 63), 36864 + 63 * 8);
  EXPECT_LE(ScaleOffset(layout, 63) + 8, 37440);  // the padding is behind it
  EXPECT_EQ(ValueOffset(layout, 64), 37440);
  EXPECT_EQ(ScaleOffset(layout, 64), 37440 + 36864);
  EXPECT_EQ(StorageBytes(layout, 1), 37440);
  EXPECT_EQ(StorageBytes(layout, 64), 37440);
  EXPECT_EQ(StorageBytes(layout, 65), 2 * 37440);
}

// No two rows of a page overlap, and none touches the padding.
TEST(LayoutTest, SplitPageIsTiledExactly) {
  const RowLayout layout = DeepSeekV4Layout();
  std::vector<int32_t> uses(2 * layout.page_bytes, 0);
  for (int32_t row = 0; row < 128; ++row) {
    for (int32_t b = 0; b < layout.value_bytes; ++b) ++uses[ValueOffset(layout, row) + b];
    for (int32_t b = 0; b < layout.scale_bytes; ++b) ++uses[ScaleOffset(layout, row) + b];
  }
  for (int64_t page = 0; page < 2; ++page) {
    for (int64_t b = 0; b < layout.page_bytes; ++b) {
      ASSERT_EQ(uses[page * layout.page_bytes + b], b < 64 * 584 ? 1 : 0) << b;
    }
  }
}

TEST(LayoutTest, OffsetsPass32Bits) {
  constexpr int64_t k2To31 = int64_t{1} << 31;
  const RowLayout row656 = Contiguous(656);
  EXPECT_LT(ValueOffset(row656, 3273603), k2To31);
  EXPECT_EQ(ValueOffset(row656, 3273604), 2147484224);
  EXPECT_GE(ValueOffset(row656, 3273604), k2To31);
  // The hot buffer: 2^31 lies in the fourth row of region 775.
  EXPECT_EQ(RegionStride(4096, 1), 4224);
  EXPECT_EQ(ValueOffset(row656, 775 * 4224), int64_t{775} * 4224 * 656);
  EXPECT_LT(ValueOffset(row656, 775 * 4224 + 3), k2To31);
  EXPECT_GT(ValueOffset(row656, 775 * 4224 + 4), k2To31);
  constexpr int32_t kLast = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(ValueOffset(row656, kLast), 2147483647LL * 656);
  EXPECT_EQ(ValueOffset(DeepSeekV4Layout(), kLast), 33554431LL * 37440 + 63 * 576);
  EXPECT_EQ(ScaleOffset(DeepSeekV4Layout(), kLast), 33554431LL * 37440 + 36864 + 63 * 8);
}

TEST(LayoutTest, RegionStride) {
  EXPECT_EQ(RegionStride(1, 1), 128);
  EXPECT_EQ(RegionStride(127, 1), 128);
  EXPECT_EQ(RegionStride(128, 1), 256);  // the newest row does not fit any more
  EXPECT_EQ(RegionStride(126, 2), 128);
  EXPECT_EQ(RegionStride(127, 2), 256);
  EXPECT_EQ(RegionStride(kHotSizeMax, 1), 32896);
}

TEST(LayoutTest, ResolveSlot) {
  constexpr int32_t kBlocks[] = {7, -1, 0, 33554431, 33554432};
  const auto slot = [&](int32_t position, int32_t length = kNone) {
    return ResolveSlot(kBlocks, 5, 64, length, position);
  };
  EXPECT_EQ(slot(0), 448);
  EXPECT_EQ(slot(63), 511);
  EXPECT_EQ(slot(64), kNone);  // a block that is none
  EXPECT_EQ(slot(128), 0);
  EXPECT_EQ(slot(3 * 64 + 63), 2147483647);  // the last slot there can be
  EXPECT_EQ(slot(4 * 64), kNone);            // slots of this block don't fit int32
  EXPECT_EQ(slot(5 * 64), kNone);            // past the table
  EXPECT_EQ(slot(-1), kNone);
  EXPECT_EQ(slot(std::numeric_limits<int32_t>::min()), kNone);
  EXPECT_EQ(slot(std::numeric_limits<int32_t>::max()), kNone);
  EXPECT_EQ(slot(9, 10), 457);
  EXPECT_EQ(slot(10, 10), kNone);  // past the sequence
  EXPECT_EQ(slot(0, 0), kNone);
}

TEST(LayoutTest, ResolveSlotOfOddBlocks) {
  constexpr int32_t kBlocks[] = {3, 1};
  EXPECT_EQ(ResolveSlot(kBlocks, 2, 7, kNone, 6), 27);
  EXPECT_EQ(ResolveSlot(kBlocks, 2, 7, kNone, 7), 7);
  EXPECT_EQ(ResolveSlot(kBlocks, 2, 7, kNone, 14), kNone);
}

}  // namespace
}  // namespace kvtier
