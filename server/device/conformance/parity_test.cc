// The kernels of a backend and the sequential reference leave the same bytes behind.

#include "kernels/testing/random_steps.h"
#include "server/device/conformance/conformance.h"
#include "server/device/conformance/testing/kernel_stage.h"

namespace kvtier {
namespace {

using ::kvtier::testing::Contiguous;
using ::kvtier::testing::Difference;
using ::kvtier::testing::GroupFixture;
using ::kvtier::testing::GroupOptions;
using ::kvtier::testing::RandomSteps;
using ::kvtier::testing::SplitPage;

constexpr int32_t kStepsPerShape = 200;

struct Shape {
  const char* name;
  GroupOptions options;
};

std::vector<Shape> Shapes() {
  const RowLayout narrow = Contiguous(16), padded = Contiguous(32, 48), wide = Contiguous(656);
  const RowLayout split = SplitPage(16, 4, 4, 96), pages = SplitPage(32, 8, 64, 2576);
  const auto shape = [](int32_t top_k, int32_t hot_size, int32_t regions, int32_t rows,
                        int32_t block_size, int32_t slots, int32_t max_blocks) {
    return GroupShape{.top_k = top_k,
                      .hot_size = hot_size,
                      .region_count = regions,
                      .rows_per_request = rows,
                      .block_size = block_size,
                      .slot_count = slots,
                      .max_blocks = max_blocks};
  };
  const auto aged = [](GroupShape of) {
    of.policy = EvictionPolicy::kAged;
    return of;
  };
  // Shape, layers, rows of a call, positions (or slots), tracking.
  return {
      {"smallest", {shape(1, 1, 1, 1, 1, 4, 4), {narrow}, 1}},
      {"hot_equals_top_k", {shape(7, 7, 2, 1, 4, 64, 8), {narrow, padded}, 3, true}},
      {"layers_of_all_kinds",
       {shape(16, 40, 3, 1, 8, 240, 8), {wide, split, padded}, 4, true, true}},
      {"around_a_warp", {shape(33, 67, 2, 1, 16, 320, 12), {split, narrow}, 3, false, true}},
      {"odd_blocks", {shape(16, 40, 2, 1, 7, 140, 12), {padded}, 2, true, true}},
      {"whole_pages", {shape(64, 129, 2, 1, 64, 512, 8), {pages}, 3, true, true}},
      {"many_regions", {shape(4, 9, 9, 1, 2, 144, 9), {narrow, split}, 11, true}},
      {"scores", {aged(shape(33, 67, 3, 1, 16, 480, 12)), {split, narrow}, 4, true, true}},
      {"scores_of_few_rows", {aged(shape(5, 300, 2, 2, 8, 240, 8)), {padded}, 4, false, true}},
      {"rows_of_one_request", {shape(11, 37, 2, 3, 4, 128, 18), {split, padded}, 7, true, true}},
  };
}

// 200 random steps a shape, of swap-in, replayed plans, backup, invalidation and resets.
TEST_P(BackendConformance, ParityWithTheReference) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(shape.name);
    testing::KernelStage stage(backend_.get(), device_.uuid,
                               [](DeviceStream& stream) { return Drain(stream); });
    const testing::Implementation reference = testing::Reference();
    const testing::Implementation ours = stage.AsImplementation(GetParam().name);
    GroupFixture expected(shape.options), actual(shape.options);
    RandomSteps steps(/*seed=*/17, &expected);
    testing::CopyInputs(expected, &actual);
    for (int32_t i = 0; i < kStepsPerShape; ++i) {
      const testing::Round round = steps.Next();
      Play(round, reference, &expected);
      Play(round, ours, &actual);
      ASSERT_EQ(Difference(expected, actual), "") << "step " << i;
      ASSERT_FALSE(HasFailure()) << "step " << i;
    }
    EXPECT_GT(expected.counts()[Counter::kRowsCopied], 0);
    EXPECT_GT(expected.counts()[Counter::kSteps], kStepsPerShape / 2);
  }
}

}  // namespace
}  // namespace kvtier
