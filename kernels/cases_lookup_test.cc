// Faults seen in systems of this kind, as tests: what a row asks for and what it gets.
// (The state of the worked example is called F0 here.)
#include "kernels/testing/case_fixture.h"

namespace kvtier::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

class LookupCases : public KernelTest {};

// An id that stands in a row twice is one lookup: it gets one hot slot, now and in the next step.
TEST_P(LookupCases, K01_DuplicateKey) {
  Group g = WorkedExample();
  const Ints row = {200, 200, 700, -1, 300, 700, 1100, 900};
  EXPECT_THAT(g.StepRow(row, 150), ElementsAre(1, 1, 3, -1, 2, 3, 5, 8));
  EXPECT_THAT(g.Copied(), ElementsAre(700, 1100));
  EXPECT_EQ(g.owner[3], 700);
  EXPECT_EQ(g.owner[5], 1100);
  EXPECT_THAT(g.Lru(0), ElementsAre(0, 7, 4, 6, 9, 10, 11, 12, 13, 14, 15, 3, 5, 1, 2, 8));
  EXPECT_EQ(g.Rise(Counter::kDuplicates), 2);

  const Ints again = g.StepRow(row, 151);
  EXPECT_THAT(again, ElementsAre(1, 1, 3, -1, 2, 3, 5, 8));
  EXPECT_THAT(g.Copied(), IsEmpty());
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] >= 0) {
      EXPECT_TRUE(g.Holds(again[i], row[i])) << i;
    }
  }
}

// Padding rows and short rows leave nothing of the step before in any output.
TEST_P(LookupCases, K02_UninitialisedOutput) {
  for (const bool by_count : {true, false}) {
    GroupOptions options = SmallOptions();
    options.num_rows = 3;
    options.shape.region_count = 3;
    Group g = WorkedExample(options);
    const Ints topk = {200, -1, -1, -1, -1, -1, -1, -1};
    const int32_t other = by_count ? 1 : kNone;
    std::vector<Row> rows = {{0, topk, 150}, {other, topk, 150}, {other, topk, 150}};
    if (by_count) rows.resize(1);  // the arrays still have three rows
    const Ints out = g.StepRows(rows);
    EXPECT_THAT(out, ElementsAreArray(Join({{1}, Times(23, -1)})));
    EXPECT_THAT(g.miss_mask, Each(0));
    EXPECT_THAT(g.valid_counts, ElementsAre(1, 0, 0));
    EXPECT_THAT(g.plan_counts, ElementsAre(0, 0, 0));
  }
}

// Rows that name nothing change nothing; neither does the stale tail of a row.
TEST_P(LookupCases, K03_StaleInput) {
  Group g = WorkedExample();
  const std::vector<int16_t> lru = g.lru;
  const Ints owner = g.owner;
  EXPECT_THAT(g.StepRow(Times(8, -1), 150), Each(-1));
  EXPECT_EQ(g.Rise(Counter::kHits) + g.Rise(Counter::kMisses), 0);
  EXPECT_EQ(g.Rise(Counter::kInvalid), 8);
  EXPECT_EQ(g.lru, lru);
  EXPECT_EQ(g.owner, owner);

  EXPECT_THAT(g.StepRow({-1, -2, -2147483647 - 1, 200, 300, -1, -1, -1}, 150),
              ElementsAre(-1, -1, -1, 1, 2, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kHits), 2);
  EXPECT_THAT(g.Lru(0), ElementsAre(3, 5, 0, 7, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 1, 2));
}

TEST_P(LookupCases, K03_TailPastTheSequence) {
  GroupOptions options = SmallOptions();
  options.shape.max_blocks = 4;
  options.positions = true;
  Group g = MakeGroup(options);
  g.block_table = {5, -1, 9, 32};  // the last one is past the pool
  g.sequence_lengths = {140};
  EXPECT_THAT(g.StepRow({0, 63, 64, 128, 139, 140, 200, 1000}, kNone),
              ElementsAre(0, 1, -1, 2, 3, -1, -1, -1));
  EXPECT_THAT(g.Copied(), ElementsAre(5 * 64, 5 * 64 + 63, 9 * 64, 9 * 64 + 11));
  g.sequence_lengths = {kNone};  // unknown: the table alone decides
  EXPECT_THAT(g.StepRow({140, 192}), ElementsAre(4, 5, -1, -1, -1, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kUnsourced), 1);
}

// As a graph replays one launch with another number of real rows each time.
TEST_P(LookupCases, K04_PaddedAndEmptyBatches) {
  GroupOptions options = SmallOptions();
  options.num_rows = 4;
  options.shape.region_count = 4;
  Group g = MakeGroup(options);
  const std::vector<Row> rows = {
      {0, Range(0, 8), 99}, {1, Range(10, 18), 99}, {2, Range(20, 28), 99}, {3, {30}, 99}};
  for (const int32_t real : {4, 1, 0, 3}) {
    for (int32_t region = 0; region < 4; ++region) g.EmptyRegion(region);
    g.StepRows({rows.begin(), rows.begin() + real});
    EXPECT_EQ(g.Rise(Counter::kSteps), real > 0 ? 1 : 0);
    EXPECT_EQ(g.Rise(Counter::kMisses), std::min(real, 3) * 8 + (real == 4 ? 1 : 0));
  }
  // A count out of range is brought into it: the padding rows name no region.
  g.num_real_rows = 1000;
  g.row_to_request = {0, -1, -1, -1};
  GetParam().swap_in(g.SwapIn());
  g.num_real_rows = -1000;
  GetParam().swap_in(g.SwapIn());
  EXPECT_THAT(g.hot_indices, Each(-1));
}

TEST_P(LookupCases, K04_PaddedRowsTouchNoOtherRegion) {
  GroupOptions options = SmallOptions();
  options.num_rows = 4;
  options.shape.region_count = 4;
  Group g = MakeGroup(options);
  g.StepRows({{0, Range(0, 8), 99}});
  EXPECT_TRUE(g.IsUntouched(8, 4 * g.shape().region_stride));
}

TEST_P(LookupCases, K04_NoRowsAndNoColumns) {
  Group g = WorkedExample();
  SwapInParams none = g.SwapIn();
  none.num_rows = 0;
  none.num_real_rows = nullptr;
  GetParam().swap_in(none);
  EXPECT_EQ(g.counts()[Counter::kSteps], 0);

  GroupOptions options = SmallOptions();
  options.shape.top_k = 0;
  Group narrow = WorkedExample(options);
  const Ints order = narrow.Lru(0);
  EXPECT_THAT(narrow.StepRow({}, 150), IsEmpty());
  EXPECT_EQ(narrow.Rise(Counter::kSteps), 1);
  EXPECT_EQ(narrow.Lru(0), order);
  EXPECT_THAT(narrow.valid_counts, ElementsAre(0));
  // What is being written is stale in the buffer, whether somebody asks for it or not.
  narrow.StepRow({}, 200);
  EXPECT_EQ(narrow.owner[1], kNone);
}

// Sizes around those of a warp: a scan that counts a lane too many or too few shows in the order.
TEST_P(LookupCases, K05_LaneBoundaries) {
  for (const int32_t k : {1, 31, 32, 33, 63, 64, 65, 128}) {
    GroupOptions options = SmallOptions();
    options.shape.top_k = k;
    options.shape.hot_size = 2 * k + 1;
    options.layouts = {Contiguous(16)};
    Group g = MakeGroup(options);
    const Ints order = Join({Range(k, 2 * k + 1), Range(0, k)});
    for (const int32_t copies : {k, 0}) {  // the same row again is a fixed point
      EXPECT_EQ(g.StepRow(Range(1000, 1000 + k), 5), Range(0, k)) << k;
      EXPECT_EQ(std::ssize(g.Copied()), copies) << k;
      EXPECT_EQ(g.Lru(0), order) << k;
    }
  }
}

TEST_P(LookupCases, K05_OverlappingRows) {
  GroupOptions options = SmallOptions();
  options.shape.top_k = 33;
  options.shape.hot_size = 40;
  Group g = MakeGroup(options);
  g.StepRow(Range(0, 33));
  EXPECT_EQ(g.StepRow(Range(16, 49)), Join({Range(16, 40), Range(0, 9)}));
  EXPECT_EQ(g.Rise(Counter::kHits), 17);
  EXPECT_EQ(g.Rise(Counter::kMisses), 16);
  EXPECT_EQ(g.Lru(0), Join({Range(9, 16), Range(33, 40), Range(0, 9), Range(16, 33)}));
}

// Where the newest token is found: in its reserved row, and nowhere else.
TEST_P(LookupCases, K08_NewestToken) {
  {
    Group g = WorkedExample();
    EXPECT_THAT(g.StepRow({200, 300, 800, 900, 100, 400, 500, 600}, 150),
                ElementsAre(1, 2, 7, 8, 0, 3, 4, 5));
    EXPECT_EQ(g.Rise(Counter::kHits), 8);
    EXPECT_EQ(g.Rise(Counter::kMisses), 0);
    EXPECT_TRUE(g.IsUntouched(16, 17));
  }
  {
    Group g = WorkedExample();
    const Ints order = g.Lru(0);
    EXPECT_THAT(g.StepRow(Times(8, 150), 150), Each(16));
    EXPECT_EQ(g.Rise(Counter::kNewest), 8);
    EXPECT_EQ(g.Rise(Counter::kHits) + g.Rise(Counter::kMisses), 0);
    EXPECT_EQ(g.Lru(0), order);
  }
  {
    Group g = WorkedExample();  // -1 is no newest slot that a -1 in the row could name
    EXPECT_THAT(g.StepRow({-1, 200}, kNone), ElementsAre(-1, 1, -1, -1, -1, -1, -1, -1));
  }
  {
    Group g = WorkedExample();  // past the pool: the host is not read for it
    EXPECT_THAT(g.StepRow({5000, 200}, 5000), ElementsAre(16, 1, -1, -1, -1, -1, -1, -1));
    EXPECT_EQ(g.Rise(Counter::kUnsourced), 0);
  }
  {
    Group g = WorkedExample();  // no newest slots at all
    SwapInParams p = g.SwapIn();
    p.newest_slot = nullptr;
    g.topk = {150, 200, -1, -1, -1, -1, -1, -1};
    GetParam().swap_in(p);
    EXPECT_THAT(g.hot_indices, ElementsAre(3, 1, -1, -1, -1, -1, -1, -1));
  }
}

// Several rows of one request: one transaction, each with a newest row of its own.
TEST_P(LookupCases, SpeculativeRowsAreOneTransaction) {
  GroupOptions options = SmallOptions();
  options.num_rows = 3;
  options.shape.rows_per_request = 2;
  options.shape.region_count = 2;
  Group g = WorkedExample(options);
  const int32_t other = g.shape().region_stride;
  // Rows 0 and 2 are of request 0. 700 is missed once, for row 0; 150 and 151 are newest for both.
  const Ints out = g.StepRows(
      {{0, {150, 151, 700, 200}, 150}, {1, {150, 700}, 150}, {0, {700, 150, 151, 1100, 200}, 151}});
  EXPECT_THAT(Ints(out.begin(), out.begin() + 4), ElementsAre(16, 17, 3, 1));
  EXPECT_THAT(Ints(out.begin() + 8, out.begin() + 10), ElementsAre(other + 16, other + 0));
  EXPECT_THAT(Ints(out.begin() + 16, out.begin() + 21), ElementsAre(3, 16, 17, 5, 1));
  EXPECT_THAT(g.Copied(), ElementsAre(700, 700, 1100));
  EXPECT_THAT(g.plan_counts, ElementsAre(1, 1, 1));
  EXPECT_EQ(g.Rise(Counter::kHits), 1);
  EXPECT_EQ(g.Rise(Counter::kMisses), 3);
  EXPECT_EQ(g.Rise(Counter::kDuplicates), 2);
  EXPECT_EQ(g.Rise(Counter::kNewest), 5);

  // A third row of a request that may have two is refused, and so is a request that isn't there.
  g.StepRows({{0, {200}, 150}, {0, {200}, 151}, {0, {200}, 152}});
  EXPECT_EQ(g.Rise(Counter::kRejectedRows), 1);
  g.StepRows({{2, {200}, 150}, {-2, {200}, 151}, {-1, {200}, 152}});
  EXPECT_EQ(g.Rise(Counter::kRejectedRows), 2);
  EXPECT_EQ(g.Rise(Counter::kSteps), 0);
}

KVTIER_INSTANTIATE(LookupCases);

}  // namespace
}  // namespace kvtier::testing
