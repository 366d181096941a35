// Steps on memory that stays on the device: the worked example, layer offsets, order.

#include <algorithm>
#include <array>

#include "gmock/gmock.h"
#include "server/device/conformance/conformance.h"
#include "server/device/conformance/testing/step_world.h"
#include "tests/golden/worked_example.h"

namespace kvtier {
namespace {

using ::kvtier::testing::PatternRow;
using ::kvtier::testing::StepWorld;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

GroupShape Shape(int32_t top_k, int32_t hot_size, int32_t block_size, int32_t slot_count) {
  return {.top_k = top_k,
          .hot_size = hot_size,
          .region_count = 1,
          .region_stride = RegionStride(hot_size, 1),
          .block_size = block_size,
          .slot_count = slot_count,
          .max_blocks = slot_count / block_size};
}

RowLayout Rows(int32_t row_bytes, int64_t row_stride) {
  return {.value_bytes = row_bytes, .row_stride = row_stride};
}

template <size_t N>
std::vector<int32_t> AsVector(const std::array<int32_t, N>& numbers) {
  return {numbers.begin(), numbers.end()};
}

int64_t Count(const StatsBlock& stats, Counter counter) {
  return stats.counts[static_cast<int32_t>(counter)];
}

// From an empty region, through the setup steps.
TEST_P(BackendConformance, WorkedExample) {
  auto stream = Stream();
  StepWorld world(*backend_, device_.uuid, *stream,
                  Shape(golden::kTopK, golden::kHotSize, golden::kBlockSize, golden::kSlotCount),
                  {Rows(golden::kRowBytes, golden::kRowBytes)});
  for (int32_t step = 0; step < golden::kSetupStepCount; ++step) {
    world.Step(*stream, AsVector(golden::SetupSlots(step)), golden::kSetupNewestSlot);
  }
  const auto owner_before = world.owner.Read(*stream);
  const auto lru_before = world.lru.Read(*stream);
  const auto stats_before = world.stats.Read(*stream);
  world.Step(*stream, AsVector(golden::kSlots), golden::kNewestSlot);
  const auto hot_indices = world.hot_indices.Read(*stream);
  const auto miss_mask = world.miss_mask.Read(*stream);
  const auto valid_counts = world.valid_counts.Read(*stream);
  auto plan_slots = world.plan_slots.Read(*stream);
  auto plan_hot_rows = world.plan_hot_rows.Read(*stream);
  const auto plan_counts = world.plan_counts.Read(*stream);
  const auto owner_after = world.owner.Read(*stream);
  const auto lru_after = world.lru.Read(*stream);
  const auto stats_after = world.stats.Read(*stream);
  const auto hot = world.hot.Read(*stream);
  ASSERT_TRUE(Drain(*stream).ok());

  EXPECT_THAT(owner_before, ElementsAreArray(golden::kOwnerBefore));
  EXPECT_THAT(lru_before, ElementsAreArray(golden::kLruBefore));
  EXPECT_THAT(hot_indices, ElementsAreArray(golden::kHotIndices));
  EXPECT_THAT(miss_mask, ElementsAreArray(golden::kMissMask));
  EXPECT_THAT(valid_counts, ElementsAre(golden::kValidCount));
  EXPECT_THAT(plan_counts, ElementsAre(golden::kMisses));
  plan_slots.resize(golden::kMisses);
  plan_hot_rows.resize(golden::kMisses);
  EXPECT_THAT(plan_slots, ElementsAreArray(golden::kPlanSlots));
  EXPECT_THAT(plan_hot_rows, ElementsAreArray(golden::kPlanHotRows));
  EXPECT_THAT(owner_after, ElementsAreArray(golden::kOwnerAfter));
  EXPECT_THAT(lru_after, ElementsAreArray(golden::kLruAfter));
  EXPECT_EQ(Count(stats_before[0], Counter::kHits), golden::kSetupHits);
  EXPECT_EQ(Count(stats_before[0], Counter::kMisses), golden::kSetupMisses);
  EXPECT_EQ(Count(stats_after[0], Counter::kHits), golden::kSetupHits + golden::kHits);
  EXPECT_EQ(Count(stats_after[0], Counter::kMisses), golden::kSetupMisses + golden::kMisses);
  for (int32_t slot = 0; slot < golden::kHotSize; ++slot) {
    EXPECT_EQ(world.HotRow(hot, 0, slot),
              PatternRow(golden::kOwnerAfter[slot], 0, golden::kRowBytes));
  }
}

// K19: every layer is bound where it starts, in the pool and in the hot buffer.
TEST_P(BackendConformance, K19_LayersOfDifferentRowBytes) {
  constexpr int32_t kBlockSize = 16, kSlots = 5 * kBlockSize, kNewestRow = 6;
  const std::vector<int32_t> row_bytes = {656, 1152, 128};
  auto stream = Stream();
  StepWorld world(*backend_, device_.uuid, *stream, Shape(4, kNewestRow, kBlockSize, kSlots),
                  {Rows(656, 672), Rows(1152, 1152), Rows(128, 144)});
  // First and last row of the first and of the last block.
  const std::vector<int32_t> slots = {0, kBlockSize - 1, kSlots - kBlockSize, kSlots - 1};
  world.Step(*stream, slots, 40);
  const auto hot_indices = world.hot_indices.Read(*stream);
  const auto hot = world.hot.Read(*stream);
  ASSERT_TRUE(Drain(*stream).ok());
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_EQ(world.HotRow(hot, layer, hot_indices[i]),
                PatternRow(slots[i], layer, row_bytes[layer]))
          << "layer " << layer << " slot " << slots[i];
    }
  }
  EXPECT_EQ(world.DamagedCanaries(hot), 0);

  // And back: the newest row of each layer to its own rows.
  for (const int32_t slot : slots) {
    for (int32_t layer = 0; layer < 3; ++layer) {
      world.WriteHotRow(*stream, layer, kNewestRow,
                        std::vector<uint8_t>(row_bytes[layer], static_cast<uint8_t>(0xa0 + layer)));
    }
    world.BackUpNewest(*stream, slot);
  }
  const auto hot_after = world.hot.Read(*stream);
  ASSERT_TRUE(Drain(*stream).ok());
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const bool written = std::find(slots.begin(), slots.end(), slot) != slots.end();
      EXPECT_EQ(world.HostRow(layer, slot),
                written ? std::vector<uint8_t>(row_bytes[layer], static_cast<uint8_t>(0xa0 + layer))
                        : PatternRow(slot, layer, row_bytes[layer]))
          << "layer " << layer << " slot " << slot;
    }
  }
  EXPECT_EQ(world.DamagedCanaries(hot_after), 0);
}

// A thousand times: a new row is written, backed up, and selected by the next step. How many
// steps saw other bytes than those just written?
int Mismatches(DeviceBackend& backend, const std::string& device_uuid, DeviceStream& stream,
               bool backup_first, const std::function<absl::Status(DeviceStream&)>& drain) {
  constexpr int32_t kIterations = 1000, kRowBytes = 656, kSlot = 10, kNewestRow = 1;
  StepWorld world(backend, device_uuid, stream, Shape(1, 1, 16, 32), {Rows(kRowBytes, kRowBytes)});
  std::vector<std::vector<uint8_t>> seen(kIterations, std::vector<uint8_t>(kRowBytes));
  for (int32_t i = 0; i < kIterations; ++i) {
    world.WriteHotRow(stream, 0, kNewestRow, PatternRow(i, 1, kRowBytes));
    if (backup_first) world.BackUpNewest(stream, kSlot);
    world.Step(stream, {kSlot}, kSlot + 1);
    if (!backup_first) world.BackUpNewest(stream, kSlot);
    EXPECT_TRUE(stream.Read(seen[i].data(), world.hot_row(0, 0), kRowBytes).ok());
  }
  EXPECT_TRUE(drain(stream).ok());
  int mismatches = 0;
  for (int32_t i = 0; i < kIterations; ++i) {
    if (seen[i] != PatternRow(i, 1, kRowBytes)) ++mismatches;
  }
  return mismatches;
}

TEST_P(BackendConformance, K21_ABackupIsSeenByTheStepAfterIt) {
  auto stream = Stream();
  EXPECT_EQ(Mismatches(*backend_, device_.uuid, *stream, /*backup_first=*/true, Drain), 0);
}

// The test above can see what it looks for.
TEST_P(BackendConformance, K21_ABackupAfterTheStepIsNotSeen) {
  auto stream = Stream();
  EXPECT_GT(Mismatches(*backend_, device_.uuid, *stream, /*backup_first=*/false, Drain), 990);
}

}  // namespace
}  // namespace kvtier
