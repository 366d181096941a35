#include "server/hot_tier/block_table_image.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/layout.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Moves all pending changes to a table as the device has it.
void Flush(BlockTableImage& image, std::vector<std::vector<int32_t>>& device) {
  while (const auto change = image.TakeChange()) {
    for (size_t i = 0; i < change->block_ids.size(); ++i) {
      device[change->region][change->first_entry + i] = change->block_ids[i];
    }
  }
}

TEST(BlockTableImageTest, AppendsBehindTheLastBlock) {
  BlockTableImage image(2, 8);
  EXPECT_EQ(image.EndOf(0), 0);
  image.Write(0, 0, {10, 11, 12});
  EXPECT_EQ(image.EndOf(0), 3);
  // A block in the middle leaves its place empty: positions behind it do not move.
  image.Remove(0, {11});
  EXPECT_THAT(image.row(0), ElementsAre(10, kNone, 12));
  EXPECT_EQ(image.EndOf(0), 3);
  // Those at the end are used again.
  image.Remove(0, {12});
  EXPECT_EQ(image.EndOf(0), 1);
  EXPECT_THAT(image.row(1), IsEmpty());
}

TEST(BlockTableImageTest, ChangesAreWhatDiffers) {
  BlockTableImage image(2, 8);
  EXPECT_FALSE(image.TakeChange().has_value());
  image.Write(1, 0, {10, 11, 12});
  auto change = image.TakeChange();
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->region, 1);
  EXPECT_EQ(change->first_entry, 0);
  EXPECT_THAT(change->block_ids, ElementsAre(10, 11, 12));
  EXPECT_FALSE(image.TakeChange().has_value());

  const std::vector<int32_t> before = image.Remove(1, {11, 99});
  EXPECT_THAT(before, ElementsAre(10, 11, 12));
  change = image.TakeChange();
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->first_entry, 1);
  EXPECT_THAT(change->block_ids, ElementsAre(kNone));
}

TEST(BlockTableImageTest, WhatWasPutBackIsWrittenAsItIsThen) {
  BlockTableImage image(1, 8);
  image.Write(0, 0, {10, 11});
  const auto change = image.TakeChange();
  ASSERT_TRUE(change.has_value());
  image.Remove(0, {10, 11});
  image.PutBack(*change);
  const auto again = image.TakeChange();
  ASSERT_TRUE(again.has_value());
  EXPECT_THAT(again->block_ids, ElementsAre(kNone, kNone));
}

TEST(BlockTableImageTest, ClearWritesTheWholeRow) {
  BlockTableImage image(2, 8);
  image.Write(0, 0, {1});
  image.Clear(0);
  const auto change = image.TakeChange();
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->block_ids.size(), 8u);
  EXPECT_THAT(change->block_ids, Each(kNone));
}

// Whatever happens, and however late: a flushed device table equals the image.
TEST(BlockTableImageTest, TheDeviceFollows) {
  constexpr int32_t kRegions = 3, kMaxBlocks = 12;
  BlockTableImage image(kRegions, kMaxBlocks);
  std::vector<std::vector<int32_t>> device(kRegions, std::vector<int32_t>(kMaxBlocks, kNone));
  std::mt19937 random(1);
  int32_t next_block = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto region = static_cast<int32_t>(random() % kRegions);
    const std::vector<int32_t> row = image.row(region);
    switch (random() % 6) {
      case 0:
      case 1:
        if (image.EndOf(region) < kMaxBlocks) {
          image.Write(region, image.EndOf(region), {++next_block});
        }
        break;
      case 2:
        if (!row.empty()) image.Remove(region, {row[random() % row.size()], row.back()});
        break;
      case 3:
        image.Remove(region, row);
        image.Restore(region, row);
        break;
      case 4:
        if (const auto change = image.TakeChange()) image.PutBack(*change);
        break;
      default:
        if (random() % 8 == 0) image.Clear(region);
        Flush(image, device);
        for (int32_t r = 0; r < kRegions; ++r) {
          std::vector<int32_t> expected = image.row(r);
          expected.resize(kMaxBlocks, kNone);
          ASSERT_EQ(device[r], expected) << "step " << step << ", region " << r;
        }
    }
  }
}

}  // namespace
}  // namespace kvtier
