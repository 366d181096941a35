// Rows that several regions hold or want: which of them cross PCIe. Run with one of the headers
// simulated_cases.h and cuda_cases.h; StepRows() checks bytes and everything else.
#include "kernels/testing/case_fixture.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

class SharedRows : public KernelTest {
 protected:
  static constexpr int32_t kTopK = 8;
  static constexpr int64_t kBytesOfRow = 32 + 20;

  // Four regions of 16 hot slots.
  static GroupOptions Options() {
    GroupOptions options = SmallOptions();
    options.shape.top_k = kTopK;
    options.shape.hot_size = 2 * kTopK;
    options.shape.region_count = 4;
    options.shape.block_size = 8;
    options.shape.slot_count = 240;
    options.layouts = {Contiguous(32, 48), SplitPage(16, 4, 4, 96)};
    options.num_rows = 4;
    options.tracking = true;
    options.shares_rows = true;
    return options;
  }

  // A step of these regions that all ask for the same slots.
  static void Ask(Group* g, const Ints& regions, const Ints& slots) {
    std::vector<Row> rows;
    for (const int32_t region : regions) rows.push_back({region, slots});
    g->StepRows(rows);
  }

  // The last step placed so many rows, of which so many did not cross PCIe.
  static void ExpectRows(const Group& g, int64_t copied, int64_t shared) {
    EXPECT_EQ(g.Rise(Counter::kRowsCopied), copied);
    EXPECT_EQ(g.Rise(Counter::kRowsShared), shared);
    EXPECT_EQ(g.Rise(Counter::kBytesCopied), (copied - shared) * kBytesOfRow);
  }
};

TEST_P(SharedRows, WhatAllWantCrossesOnce) {
  Group g = MakeGroup(Options());
  Ask(&g, {0, 1, 2, 3}, Range(100, 108));
  ExpectRows(g, 32, 24);
  Ask(&g, {0, 1, 2, 3}, Range(100, 108));
  ExpectRows(g, 0, 0);
}

TEST_P(SharedRows, WhatOneHasDoesNotCross) {
  Group g = MakeGroup(Options());
  Ask(&g, {0}, Range(100, 108));
  ExpectRows(g, 8, 0);
  Ask(&g, {2, 0}, Range(100, 108));
  ExpectRows(g, 8, 8);
  Ask(&g, {0, 2, 1}, Join({Range(104, 108), Range(50, 54)}));
  ExpectRows(g, 4 + 4 + 8, 4 + 8);
}

TEST_P(SharedRows, RegionsOutsideTheCallAreNoSources) {
  Group g = MakeGroup(Options());
  Ask(&g, {0}, Range(100, 108));
  Ask(&g, {1}, Range(100, 108));
  ExpectRows(g, 8, 0);
  // Nor are those of padding rows.
  g.row_to_request = {3, 0, 1, 2};
  Ask(&g, {3}, Range(100, 108));
  ExpectRows(g, 8, 0);
}

TEST_P(SharedRows, WhatWasEvictedIsNoSource) {
  Group g = MakeGroup(Options());
  Ask(&g, {0}, Range(100, 108));
  Ask(&g, {0}, Range(0, 8));
  Ask(&g, {0}, Range(8, 16));
  Ask(&g, {0, 1}, Range(100, 108));
  ExpectRows(g, 16, 8);
}

// A slot goes to the very hot row that the directory names for it since long.
TEST_P(SharedRows, OldHintsThatComeTrueAgain) {
  Group g = MakeGroup(Options());
  Ask(&g, {0}, Range(100, 108));
  const Ints before = g.hot_indices;
  g.EmptyRegion(0);
  Ask(&g, {1, 2, 0}, Range(100, 108));
  ExpectRows(g, 24, 16);
  const Ints after(g.hot_indices.begin() + 2 * kTopK, g.hot_indices.begin() + 3 * kTopK);
  EXPECT_EQ(after, Ints(before.begin(), before.begin() + kTopK));
}

// Rows of a block that was assigned again: nobody finds what the tenant before left in regions.
TEST_P(SharedRows, NewTenantsFindNothingOld) {
  Group g = MakeGroup(Options());
  Ask(&g, {0, 1}, Range(96, 104));  // one block
  g.AssignBlocks({12});
  Ask(&g, {0, 2}, {96});  // not backed up yet: zeros, which are no source either
  ExpectRows(g, 0, 0);
  EXPECT_EQ(g.Rise(Counter::kUnbackedReads), 2);
  for (int32_t slot = 96; slot < 104; ++slot) g.BackupRow(kNone, slot, /*salt=*/77);
  Ask(&g, {2, 0, 1}, Range(96, 104));
  ExpectRows(g, 24, 16);
  for (int32_t i = 0; i < 3 * kTopK; ++i) {
    EXPECT_TRUE(g.Holds(g.hot_indices[i], 96 + i % kTopK)) << i;
  }
}

// A row that is written again is not copied from a region that still has what was there before.
TEST_P(SharedRows, RewrittenRowsComeFromTheHostPool) {
  Group g = MakeGroup(Options());
  Ask(&g, {0}, {100, 101});
  g.BackupRow(/*region=*/1, 100, /*salt=*/5);  // region 0 keeps its copy
  // Not by StepRows(), which would complain about that.
  std::fill(g.topk.begin(), g.topk.end(), kNone);
  g.row_to_request = {0, 1, 2, 3};
  g.num_real_rows = 2;
  g.topk[kTopK] = 100;
  const int64_t shared = g.counts()[Counter::kRowsShared];
  GetParam().swap_in(g.SwapIn());
  EXPECT_TRUE(g.Holds(g.hot_indices[kTopK], 100));
  EXPECT_EQ(g.counts()[Counter::kRowsShared], shared);
}

TEST_P(SharedRows, FollowersShareToo) {
  Group g = MakeGroup(Options());
  std::fill(g.topk.begin(), g.topk.end(), kNone);
  for (int32_t row = 0; row < 4; ++row) g.topk[row * kTopK] = 100 + row / 2;
  SwapInParams leader = g.SwapIn();
  leader.layer_count = 1;
  GetParam().swap_in(leader);
  EXPECT_EQ(g.counts()[Counter::kRowsShared], 2);
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 2 * 32);
  ReplayPlanParams follower = g.ReplayPlan();
  ++follower.layers;
  follower.layer_count = 1;
  GetParam().replay_plan(follower);
  EXPECT_EQ(g.counts()[Counter::kRowsShared], 2);
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 2 * kBytesOfRow);
  for (int32_t row = 0; row < 4; ++row) {
    EXPECT_TRUE(g.Holds(g.hot_indices[row * kTopK], 100 + row / 2)) << row;
  }
}

// Whatever a stray writer leaves in the directory, bytes are right.
TEST_P(SharedRows, AnyDirectoryIsHarmless) {
  Group g = MakeGroup(Options());
  const int32_t stride = g.shape().region_stride;
  int32_t first = 0;
  for (const int32_t word : {1, 2, 17, stride, stride + 1, 3 * stride + 16, 4 * stride,
                             4 * stride + 1, 1 << 30, INT32_MAX, -1, INT32_MIN}) {
    std::fill(g.directory.begin(), g.directory.end(), word);
    Ask(&g, {3, 0, 1, 2}, Range(first, first + kTopK));
    std::fill(g.directory.begin(), g.directory.end(), word);
    Ask(&g, {1, 3}, Join({Range(first, first + 4), Range(first + 8, first + 12)}));
    first += 16;
  }
}

// 64 requests with a common prefix that 90 % of their lookups are in: what crosses PCIe without the
// directory is rows_copied times the bytes of a row, from an empty buffer on.
TEST_P(SharedRows, ACommonPrefixCrossesPcieRarely) {
  constexpr int32_t kRequests = 64, kSteps = 48, kPrefix = 464, kOwn = 48;
  GroupOptions options = Options();
  options.shape.top_k = 32;
  options.shape.hot_size = 64;
  options.shape.region_count = options.num_rows = kRequests;
  options.shape.slot_count = kPrefix + kRequests * kOwn;
  Group g = MakeGroup(options);
  Random random(1);
  for (int32_t step = 0; step < kSteps; ++step) {
    for (int32_t at = 0; at < kRequests * options.shape.top_k; ++at) {
      const int32_t request = at / options.shape.top_k;
      // As a model does, it asks for most of its last rows again.
      if (step > 0 && !random.OneIn(5)) continue;
      g.topk[at] =
          random.OneIn(10) ? kPrefix + request * kOwn + random.Below(kOwn) : random.Below(kPrefix);
    }
    GetParam().swap_in(g.SwapIn());
  }
  for (int32_t region = 0; region < kRequests; ++region) {
    const Ints owners = g.Owners(region);
    for (int32_t h = 0; h < options.shape.hot_size; ++h) {
      ASSERT_TRUE(owners[h] < 0 || g.Holds(g.region_start(region) + h, owners[h]));
    }
  }
  const Counts counts = g.counts();
  const int64_t without = counts[Counter::kRowsCopied] * kBytesOfRow;
  EXPECT_GE(without, 5 * counts[Counter::kBytesCopied]);
  RecordProperty("bytes_without", std::to_string(without));
  RecordProperty("bytes_with", std::to_string(counts[Counter::kBytesCopied]));
}

TEST_P(SharedRows, NothingIsSharedWithoutADirectory) {
  GroupOptions options = Options();
  options.shares_rows = false;
  Group g = MakeGroup(options);
  Ask(&g, {0, 1, 2, 3}, Range(100, 108));
  ExpectRows(g, 32, 0);
}

KVTIER_INSTANTIATE(SharedRows);

}  // namespace
}  // namespace kvtier::testing
