#include "server/hot_tier/hot_tier.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/region_index.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kHot = 6, kTopK = 3, kRegions = 4, kBlocks = 8, kBlockSize = 4;

CacheLayout TwoGroups() {
  CacheLayout layout;
  for (const int32_t layers : {1, 2}) {
    GroupLayout group;
    group.top_k = kTopK;
    group.hot_size = kHot;
    for (int32_t l = 0; l < layers; ++l) {
      RowLayout row;
      row.value_bytes = 16 * (l + 1);
      row.row_stride = row.value_bytes;
      group.layers.push_back(row);
    }
    layout.groups.push_back(group);
  }
  layout.block_size = kBlockSize;
  layout.block_count = kBlocks;
  layout.max_requests = kRegions;
  layout.max_blocks_per_request = kBlocks;
  layout.step_rows = 5;
  return layout;
}

// The tier's memory is the host's on the CPU backend, so a test may look at it.
class HotTierTest : public ::testing::Test {
 protected:
  HotTierTest()
      : layout_(TwoGroups()),
        geometry_(TierGeometryOf(layout_)),
        stepper_(std::make_shared<CpuStepper>()),
        plan_(std::make_shared<FaultPlan>()),
        backend_(MakeFaultInjectingBackend(*MakeCpuBackend({.stepper = stepper_}), plan_)),
        rows_(HostGeometryOf(layout_).size_bytes),
        block_generation_(kBlocks, 1),
        backed_(TrackingGeometryOf(layout_).backed_bytes) {
    EXPECT_TRUE(ValidateLayout(layout_).ok());
    tier_ = *HotTier::Create(layout_, Host(), kCpuDeviceUuid, backend_.get());
    stream_ = *backend_->CreateStream(kCpuDeviceUuid);
  }

  HostView Host() { return {rows_.data(), block_generation_.data(), backed_.data()}; }
  int32_t* State(const ArrayExtent& extent) {
    return reinterpret_cast<int32_t*>(tier_->state().data() + extent.offset_bytes);
  }
  int16_t* Lru(int group) { return reinterpret_cast<int16_t*>(State(geometry_.groups[group].lru)); }
  int32_t* Step(const ArrayExtent& extent) {
    return reinterpret_cast<int32_t*>(tier_->step().data() + extent.offset_bytes);
  }
  std::vector<int32_t> Ints(const int32_t* first, int64_t count) { return {first, first + count}; }

  const CacheLayout layout_;
  const TierGeometry geometry_;
  std::shared_ptr<CpuStepper> stepper_;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<uint8_t> rows_;
  std::vector<int32_t> block_generation_;
  std::vector<uint8_t> backed_;
  std::unique_ptr<HotTier> tier_;
  std::unique_ptr<DeviceStream> stream_;
};

TEST_F(HotTierTest, BeginsEmpty) {
  ASSERT_TRUE(tier_->EnqueueInitialState(stream_.get()).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    EXPECT_THAT(Ints(State(geometry_.groups[g].owner), kRegions * kHot), Each(kNone));
    for (int32_t i = 0; i < kRegions * kHot; ++i) EXPECT_EQ(Lru(g)[i], i % kHot);
    EXPECT_EQ(tier_->ReadCounts(g)[Counter::kSteps], 0);
  }
  EXPECT_THAT(Ints(State(geometry_.block_table), kRegions * kBlocks), Each(kNone));
  EXPECT_THAT(Ints(State(geometry_.sequence_lengths), kRegions), Each(kNone));
  EXPECT_THAT(Ints(Step(geometry_.row_to_request), 5), Each(kNone));
  EXPECT_THAT(Ints(Step(geometry_.newest_slot), 5), Each(kNone));
  EXPECT_EQ(*Step(geometry_.num_real_rows), 0);
  EXPECT_EQ(tier_->device_bytes(),
            geometry_.hot_bytes + geometry_.state_bytes + geometry_.step_bytes);
}

TEST_F(HotTierTest, ResetsOneRegionOfEveryGroup) {
  ASSERT_TRUE(tier_->EnqueueInitialState(stream_.get()).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    std::fill_n(State(geometry_.groups[g].owner), kRegions * kHot, 7);
    std::fill_n(Lru(g), kRegions * kHot, int16_t{0});
  }
  std::fill_n(State(geometry_.sequence_lengths), kRegions, 9);
  ASSERT_TRUE(tier_->EnqueueResetRegion(stream_.get(), 2).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    EXPECT_THAT(Ints(State(geometry_.groups[g].owner) + 2 * kHot, kHot), Each(kNone));
    EXPECT_THAT(Ints(State(geometry_.groups[g].owner) + kHot, kHot), Each(7));
    EXPECT_THAT(Ints(State(geometry_.groups[g].owner) + 3 * kHot, kHot), Each(7));
    EXPECT_EQ(Lru(g)[2 * kHot + 5], 5);
    EXPECT_EQ(Lru(g)[3 * kHot + 5], 0);
  }
  EXPECT_THAT(Ints(State(geometry_.sequence_lengths), kRegions), ElementsAre(9, 9, kNone, 9));
}

TEST_F(HotTierTest, WritesBlockTableEntries) {
  ASSERT_TRUE(tier_->EnqueueInitialState(stream_.get()).ok());
  ASSERT_TRUE(tier_->EnqueueTableWrite(stream_.get(), 1, 2, {40, 41}).ok());
  stepper_->RunAll();
  const auto row = Ints(State(geometry_.block_table) + kBlocks, kBlocks);
  EXPECT_THAT(row, ElementsAre(kNone, kNone, 40, 41, kNone, kNone, kNone, kNone));
}

// Backup, swap-in through the block table, replay on the follower, invalidation: every builder,
// with real kernels.
TEST_F(HotTierTest, BuildsParametersOfAStep) {
  ASSERT_TRUE(tier_->EnqueueInitialState(stream_.get()).ok());
  ASSERT_TRUE(tier_->EnqueueTableWrite(stream_.get(), 1, 0, {5}).ok());
  stepper_->RunAll();
  const GroupShape& shape = tier_->shape(1);
  // The newest row of region 1 becomes slot 22: position 2 on block 5.
  const int32_t newest = shape.region_stride + kHot;
  for (int l = 0; l < 2; ++l) {
    uint8_t* const row = tier_->hot().data() + geometry_.groups[1].hot[l].offset_bytes +
                         ValueOffset(layout_.groups[1].layers[l], newest);
    std::fill_n(row, 16 * (l + 1), static_cast<uint8_t>(0xA0 + l));
  }
  *Step(geometry_.num_real_rows) = 1;
  Step(geometry_.row_to_request)[0] = 1;
  Step(geometry_.newest_slot)[0] = 22;
  ASSERT_TRUE(stream_->Backup(tier_->MakeBackup(1, tier_->StepBufferBackup(5))).ok());
  stepper_->RunAll();
  EXPECT_EQ(tier_->ReadCounts(1)[Counter::kBackedUpRows], 1);
  EXPECT_EQ(tier_->ReadCounts(0)[Counter::kBackedUpRows], 0);

  Step(geometry_.newest_slot)[0] = kNone;
  std::vector<int32_t> topk = {2, -1, 3};
  std::copy(topk.begin(), topk.end(), Step(geometry_.groups[1].topk));
  ASSERT_TRUE(stream_->SwapIn(tier_->MakeSwapIn(1, tier_->StepBuffers(1, 5), {0, 1}, false)).ok());
  ASSERT_TRUE(stream_->ReplayPlan(tier_->MakeReplayPlan(1, 5, {1, 1})).ok());
  stepper_->RunAll();
  EXPECT_THAT(Ints(Step(geometry_.groups[1].hot_indices), 3),
              ElementsAre(shape.region_stride, kNone, shape.region_stride + 1));
  for (int l = 0; l < 2; ++l) {
    const uint8_t* const row = tier_->hot().data() + geometry_.groups[1].hot[l].offset_bytes +
                               ValueOffset(layout_.groups[1].layers[l], shape.region_stride);
    EXPECT_EQ(row[0], 0xA0 + l);
    EXPECT_EQ(row[16 * (l + 1) - 1], 0xA0 + l);
  }
  // Slot 23 was never backed up: counted, zeroed, not owned.
  EXPECT_EQ(tier_->ReadCounts(1)[Counter::kUnbackedReads], 1);
  EXPECT_EQ(State(geometry_.groups[1].owner)[kHot], 22);
  EXPECT_EQ(State(geometry_.groups[1].owner)[kHot + 1], kNone);

  int64_t before = -1, after = -1;
  // The copy lies in region 1.
  ASSERT_TRUE(tier_->EnqueueInvalidate(stream_.get(), 1, 1, {5}, &before, &after).ok());
  stepper_->RunAll();
  EXPECT_EQ(after - before, 0);
  EXPECT_EQ(State(geometry_.groups[1].owner)[kHot], 22);
  ASSERT_TRUE(tier_->EnqueueInvalidate(stream_.get(), 1, 2, {5}, &before, &after).ok());
  stepper_->RunAll();
  EXPECT_EQ(after - before, 1);
  EXPECT_EQ(State(geometry_.groups[1].owner)[kHot], kNone);
}

TEST_F(HotTierTest, StateHasAnIndexThatKnowsNothing) {
  ASSERT_TRUE(tier_->EnqueueInitialState(stream_.get()).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    const GroupState state = tier_->MakeSwapIn(g, tier_->StepBuffers(g, 1), {0, 1}, true).state;
    const int64_t words = int64_t{kRegions} * RegionIndexLength(kHot);
    EXPECT_EQ(state.index, reinterpret_cast<uint16_t*>(State(geometry_.groups[g].index)));
    EXPECT_EQ(geometry_.groups[g].index.size_bytes, words * 2);
    EXPECT_THAT(std::vector<uint16_t>(state.index, state.index + words), Each(0));
  }
}

TEST_F(HotTierTest, ScoresAreThereIfThePolicyHasThem) {
  EXPECT_EQ(tier_->MakeBackup(0, tier_->StepBufferBackup(1)).state.score, nullptr);
  EXPECT_EQ(tier_->MakeBackup(0, tier_->StepBufferBackup(1)).state.kept, nullptr);
  CacheLayout layout = TwoGroups();
  layout.eviction_policy = EvictionPolicy::kAged;
  const auto tier = *HotTier::Create(layout, Host(), kCpuDeviceUuid, backend_.get());
  ASSERT_TRUE(tier->EnqueueInitialState(stream_.get()).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    const SwapInParams params = tier->MakeSwapIn(g, tier->StepBuffers(g, 1), {0, 1}, true);
    ASSERT_NE(params.state.score, nullptr);
    EXPECT_EQ(params.shape.policy, EvictionPolicy::kAged);
    EXPECT_THAT(std::vector<uint8_t>(params.state.score, params.state.score + kRegions * kHot),
                Each(0));
    ASSERT_NE(params.state.kept, nullptr);
    EXPECT_THAT(std::vector<int32_t>(params.state.kept, params.state.kept + kRegions), Each(kNone));
  }
}

TEST_F(HotTierTest, ADirectoryIsThereIfRowsAreShared) {
  EXPECT_EQ(tier_->MakeBackup(0, tier_->StepBufferBackup(1)).state.directory, nullptr);
  CacheLayout layout = TwoGroups();
  layout.share_rows = true;
  const auto tier = *HotTier::Create(layout, Host(), kCpuDeviceUuid, backend_.get());
  ASSERT_TRUE(tier->EnqueueInitialState(stream_.get()).ok());
  stepper_->RunAll();
  for (int g = 0; g < 2; ++g) {
    const SwapInParams params = tier->MakeSwapIn(g, tier->StepBuffers(g, 1), {0, 1}, true);
    const int32_t* const directory = params.state.directory;
    ASSERT_NE(directory, nullptr);
    EXPECT_THAT(std::vector<int32_t>(directory, directory + 2 * layout.slot_count()), Each(0));
    const ReplayPlanParams replay = tier->MakeReplayPlan(g, 1, {0, 1});
    EXPECT_EQ(replay.state.directory, directory);
    EXPECT_EQ(replay.row_to_request, params.row_to_request);
    EXPECT_EQ(tier->MakeBackup(g, tier->StepBufferBackup(1)).state.directory, directory);
  }
}

TEST_F(HotTierTest, LargeRegionsHaveNoIndex) {
  CacheLayout layout = TwoGroups();
  layout.groups[0].hot_size = kIndexedHotSizeMax + 1;
  const auto tier = *HotTier::Create(layout, Host(), kCpuDeviceUuid, backend_.get());
  EXPECT_EQ(tier->MakeBackup(0, tier->StepBufferBackup(1)).state.index, nullptr);
  EXPECT_NE(tier->MakeBackup(1, tier->StepBufferBackup(1)).state.index, nullptr);
}

TEST_F(HotTierTest, SlotsNeedNoTable) {
  const SwapInParams params = tier_->MakeSwapIn(0, tier_->StepBuffers(0, 1), {0, 1}, true);
  EXPECT_EQ(params.block_table, nullptr);
  EXPECT_EQ(params.sequence_lengths, nullptr);
}

TEST_F(HotTierTest, AllOrNothingIsAllocated) {
  for (int nth = 1; nth <= 3; ++nth) {
    const int64_t before = plan_->calls(DeviceOperation::kFree);
    plan_->FailNth(DeviceOperation::kAllocate, nth,
                   MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY_EXHAUSTED", "x"));
    const auto tier = HotTier::Create(layout_, Host(), kCpuDeviceUuid, backend_.get());
    EXPECT_EQ(ErrorReasonOf(tier.status()), "DEVICE_MEMORY_EXHAUSTED");
    EXPECT_EQ(plan_->calls(DeviceOperation::kFree) - before, nth - 1);
  }
}

}  // namespace
}  // namespace kvtier
