// What the blocks that share a row of a backup have done at each of their barriers: nothing is
// written before the generation is noted, and nothing is marked before all is written.
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/launch.h"
#include "kernels/testing/case_fixture.h"
#include "tests/gpu/simt/simt.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kLayers = 40, kSlot = 70, kOther = 75, kBlock = 1, kGeneration = 5;
constexpr uint8_t kSalt = 9;
constexpr unsigned kTaskFound = 1, kGenerationNoted = 2, kWritten = 3;

class BackupPartsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  using Observer = std::function<void(unsigned phase)>;

  BackupPartsTest() : group_(Options()) {
    group_.block_generation[kBlock] = kGeneration;
    group_.FillHotRow(newest_row(), kSlot, kSalt);
    EXPECT_NE(group_.backed_generation[kSlot], kGeneration);
  }

  static GroupOptions Options() {
    GroupOptions options = SmallAgedOptions();
    options.shape.region_count = 2;
    options.shape.hot_size = 3000;  // more than the threads of a block
    options.tracking = true;
    for (int32_t l = 0; l < kLayers; ++l) {
      options.layouts.push_back(l % 3 == 0 ? SplitPage(16, 4, 4, 96) : Contiguous(32, 48));
    }
    return options;
  }
  int32_t newest_row() const { return group_.region_start(1) + group_.shape().hot_size; }
  bool Holds(int32_t slot, uint8_t salt) const {
    for (int32_t l = 0; l < kLayers; ++l) {
      if (group_.HostRow(l, slot) != group_.PatternRow(l, slot, salt)) return false;
    }
    return true;
  }

  // Region 1's newest row to kSlot.
  void Backup(const Observer& observer) {
    unsigned phases = 0;
    simt::SetGpu({.multiprocessors = 132,
                  .seed = GetParam(),
                  .has_clusters = true,
                  .at_cluster_barrier = [&](unsigned phase) {
                    phases = phase;
                    observer(phase);
                  }});
    BackupParams p = group_.Backup();
    p.num_rows = 1;
    p.row_to_request = &region_;
    p.slots = &slot_;
    p.num_real_rows = &real_rows_;
    ASSERT_EQ(cuda::Backup(p, nullptr), cudaSuccess);
    EXPECT_EQ(phases, kWritten);
    EXPECT_TRUE(Holds(kSlot, kSalt));
    EXPECT_TRUE(Holds(kOther, 0));
    EXPECT_EQ(group_.GuardDamage(), "");
    simt::SetGpu({});
  }

  GroupFixture group_;
  int32_t region_ = 1, slot_ = kSlot, real_rows_ = 1;
};

TEST_P(BackupPartsTest, WritesBehindTheGenerationAndMarksBehindTheBytes) {
  bool wrote_early = false, wrote_all = false, marked_early = false;
  Backup([&](unsigned phase) {
    wrote_early |= phase < kWritten && !Holds(kSlot, 0);
    wrote_all |= phase == kWritten && Holds(kSlot, kSalt);
    marked_early |= group_.backed_generation[kSlot] == kGeneration ||
                    group_.Kept(1) == std::vector<int32_t>{kSlot};
  });
  EXPECT_FALSE(wrote_early);
  EXPECT_TRUE(wrote_all);
  EXPECT_FALSE(marked_early);
  EXPECT_EQ(group_.backed_generation[kSlot], kGeneration);
  EXPECT_EQ(group_.Kept(1), std::vector<int32_t>{kSlot});
  EXPECT_EQ(group_.counts()[Counter::kBackedUpRows], 1);
}

// Who assigns a block raises its generation first.
TEST_P(BackupPartsTest, ABlockThatIsAssignedMeanwhileStaysUnbacked) {
  for (const unsigned at : {kTaskFound, kGenerationNoted, kWritten}) {
    Backup([&](unsigned phase) {
      if (phase == at) ++group_.block_generation[kBlock];
    });
    EXPECT_NE(group_.backed_generation[kSlot], group_.block_generation[kBlock]) << "phase " << at;
    EXPECT_EQ(group_.Kept(1), std::vector<int32_t>{kNone}) << "phase " << at;
    group_.FillHostRow(kSlot);
  }
}

// A worker that changes its inputs too early: all blocks go on with what the first one has seen.
TEST_P(BackupPartsTest, InputsThatChangeMeanwhileAreNotLookedAtAgain) {
  const std::vector<std::function<void()>> changes = {
      [&] { slot_ = kOther; },
      [&] { slot_ = kNone; },
      [&] { region_ = 0; },
      [&] { real_rows_ = 0; },
  };
  for (const auto& change : changes) {
    slot_ = kSlot;
    region_ = real_rows_ = 1;
    Backup([&](unsigned phase) {
      if (phase == kTaskFound) change();
    });
    EXPECT_EQ(group_.backed_generation[kSlot], kGeneration);
    group_.FillHostRow(kSlot);
  }
}

// Each block looks for cached copies in its share of the region's hot slots.
TEST_P(BackupPartsTest, AllCopiesOfTheSlotAreDropped) {
  for (int32_t h = 0; h < group_.shape().hot_size; ++h) {
    group_.owner_of(0, h) = group_.owner_of(1, h) = h % 2 == 0 ? kSlot : h;
  }
  Backup([](unsigned) {});
  for (int32_t h = 0; h < group_.shape().hot_size; ++h) {
    EXPECT_EQ(group_.owner_of(0, h), h % 2 == 0 ? kSlot : h);
    EXPECT_EQ(group_.owner_of(1, h), h % 2 == 0 ? kNone : h);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, BackupPartsTest, ::testing::Range(uint64_t{1}, uint64_t{20}));

}  // namespace
}  // namespace kvtier::testing
