// What the launchers refuse, and what they leave alone then. Nothing is launched, so that the same
// file judges the build for a simulated GPU and the one for a real GPU.
#include "kernels/cuda/launch.h"

#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/workspace.h"
#include "kernels/testing/group_fixture.h"

namespace kvtier::cuda {
namespace {

using ::kvtier::testing::Contiguous;
using ::kvtier::testing::GroupFixture;
using ::kvtier::testing::GroupOptions;
using ::kvtier::testing::kPoison;
using ::kvtier::testing::SplitPage;
using ::testing::Each;

GroupOptions Options() {
  GroupOptions options;
  options.shape = {.top_k = 8,
                   .hot_size = 16,
                   .region_count = 2,
                   .block_size = 4,
                   .slot_count = 64,
                   .max_blocks = 4};
  options.layouts = {Contiguous(32), SplitPage(16, 4, 4, 96)};
  options.num_rows = 2;
  options.tracking = true;
  return options;
}

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest()
      : group_(Options()),
        memory_(WorkspaceWords()),
        layers_(group_.SwapIn().layers, group_.SwapIn().layers + 2) {
    group_.topk.assign(16, 3);
  }

  static size_t WorkspaceWords() {
    GroupFixture group(Options());
    return static_cast<size_t>(WorkspaceBytes(group.shape(), 2)) / 8 + 64;
  }
  void* workspace() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((address + 255) / 256 * 256);
  }

  // Every change alone makes the call one that nobody can serve.
  using Change = std::function<void(SwapInParams*, LaunchOptions*)>;
  void ExpectRefused(const char* what, const Change& change) {
    SwapInParams p = group_.SwapIn();
    p.layers = layers_.data();
    LaunchOptions options;
    change(&p, &options);
    EXPECT_EQ(SwapIn(p, workspace(), nullptr, options), cudaErrorInvalidValue) << what;
    EXPECT_THAT(group_.hot_indices, Each(kPoison)) << what;
    EXPECT_THAT(group_.owner, Each(kNone)) << what;
  }

  GroupFixture group_;
  std::vector<uint64_t> memory_;
  std::vector<LayerView> layers_;
};

TEST_F(LaunchTest, ThreadsAreWholeWarpsOfOneBlock) {
  for (const int32_t threads : {-32, 0, 1, 31, 33, 900, 1000, 1025, 1056, 2048}) {
    ExpectRefused("threads", [=](auto*, LaunchOptions* options) { options->threads = threads; });
  }
}

TEST_F(LaunchTest, CopyingBlocksAreNotNegative) {
  ExpectRefused("copying_blocks", [](auto*, LaunchOptions* o) { o->copying_blocks = -1; });
  EXPECT_EQ(ReplayPlan(group_.ReplayPlan(), nullptr, {.copying_blocks = -1}),
            cudaErrorInvalidValue);
}

TEST_F(LaunchTest, ShapesAreChecked) {
  const auto shape = [this](const char* what, const std::function<void(GroupShape*)>& change) {
    ExpectRefused(what, [&](SwapInParams* p, auto*) { change(&p->shape); });
  };
  shape("hot_size 0", [](GroupShape* s) { s->hot_size = 0; });
  shape("hot_size 32769", [](GroupShape* s) { s->hot_size = kHotSizeMax + 1; });
  shape("top_k -1", [](GroupShape* s) { s->top_k = -1; });
  shape("top_k 40000", [](GroupShape* s) { s->top_k = 40000; });
  shape("no regions", [](GroupShape* s) { s->region_count = 0; });
  shape("stride", [](GroupShape* s) { s->region_stride = s->hot_size; });
  shape("2^31 hot rows", [](GroupShape* s) { s->region_count = 1 << 24; });
  shape("rows", [](GroupShape* s) { s->rows_per_request = 0; });
  shape("block_size", [](GroupShape* s) { s->block_size = 0; });
  shape("slot_count", [](GroupShape* s) { s->slot_count = -1; });
  shape("policy", [](GroupShape* s) { s->policy = static_cast<EvictionPolicy>(2); });
  shape("no scores", [](GroupShape* s) { s->policy = EvictionPolicy::kAged; });
}

TEST_F(LaunchTest, LayersAreChecked) {
  const auto layer = [this](const char* what, size_t l,
                            const std::function<void(LayerView*)>& change) {
    std::vector<LayerView> changed = layers_;
    change(&changed[l]);
    ExpectRefused(what, [&](SwapInParams* p, auto*) { p->layers = changed.data(); });
  };
  layer("value_bytes 24", 0, [](LayerView* v) { v->layout.value_bytes = 24; });
  layer("value_bytes 0", 0, [](LayerView* v) { v->layout.value_bytes = 0; });
  layer("stride 40", 0, [](LayerView* v) { v->layout.row_stride = 40; });
  layer("stride 16", 0, [](LayerView* v) { v->layout.row_stride = 16; });
  layer("host + 8", 0, [](LayerView* v) { v->host += 8; });
  layer("hot + 4", 1, [](LayerView* v) { v->hot += 4; });
  layer("no host", 1, [](LayerView* v) { v->host = nullptr; });
  layer("scale_bytes 6", 1, [](LayerView* v) { v->layout.scale_bytes = 6; });
  layer("page of no rows", 1, [](LayerView* v) { v->layout.page_rows = 0; });
  layer("page too short", 1, [](LayerView* v) { v->layout.page_bytes = 64; });
  layer("page of 100 bytes", 1, [](LayerView* v) { v->layout.page_bytes = 100; });
}

TEST_F(LaunchTest, PointersComeTogetherOrNotAtAll) {
  ExpectRefused("topk", [](SwapInParams* p, auto*) { p->topk = nullptr; });
  ExpectRefused("hot_indices", [](SwapInParams* p, auto*) { p->hot_indices = nullptr; });
  ExpectRefused("rows", [](SwapInParams* p, auto*) { p->row_to_request = nullptr; });
  ExpectRefused("plan.slots", [](SwapInParams* p, auto*) { p->plan.slots = nullptr; });
  ExpectRefused("plan.counts", [](SwapInParams* p, auto*) { p->plan.counts = nullptr; });
  ExpectRefused("tracking", [](SwapInParams* p, auto*) { p->tracking.block_generation = nullptr; });
  ExpectRefused("owner", [](SwapInParams* p, auto*) { p->state.owner = nullptr; });
  ExpectRefused("layers", [](SwapInParams* p, auto*) { p->layers = nullptr; });
  ExpectRefused("num_rows", [](SwapInParams* p, auto*) { p->num_rows = -1; });
  SwapInParams p = group_.SwapIn();
  EXPECT_EQ(SwapIn(p, nullptr, nullptr), cudaErrorInvalidValue);
  p.num_rows = 0;
  EXPECT_EQ(SwapIn(p, nullptr, nullptr), cudaSuccess);
}

TEST_F(LaunchTest, OtherCallsAreCheckedToo) {
  EXPECT_EQ(ResetRegion(group_.ResetRegion(2), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ResetRegion(group_.ResetRegion(-1), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(Invalidate(group_.Invalidate({1}), nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(Invalidate(group_.Invalidate({}), nullptr, nullptr), cudaSuccess);
  ReplayPlanParams replay = group_.ReplayPlan();
  replay.plan.hot_rows = nullptr;
  EXPECT_EQ(ReplayPlan(replay, nullptr), cudaErrorInvalidValue);

  const std::vector<int32_t> slots = {1, 2}, rows = {0, 1};
  BackupParams backup = group_.Backup();
  backup.num_rows = 2;
  backup.slots = slots.data();
  EXPECT_EQ(Backup(backup, nullptr), cudaErrorInvalidValue);  // no rows to read
  backup.source_rows = rows.data();
  const std::vector<RowLayout> layouts = {Contiguous(48), SplitPage(16, 4, 4, 96)};
  const std::vector<const uint8_t*> sources = {layers_[0].hot, layers_[1].hot};
  backup.sources = sources.data();
  backup.source_layouts = layouts.data();
  EXPECT_EQ(Backup(backup, nullptr), cudaErrorInvalidValue);  // other value_bytes
  backup.sources = nullptr;
  backup.num_rows = kBackupRowsMax + 1;
  EXPECT_EQ(Backup(backup, nullptr), cudaErrorInvalidValue);
}

TEST(WorkspaceBytes, GrowsWithRowsButNotByAPlanForEach) {
  const GroupShape shape = {.top_k = 2048,
                            .hot_size = 4096,
                            .region_count = 256,
                            .region_stride = 4224,
                            .block_size = 64,
                            .slot_count = 1 << 20,
                            .max_blocks = 512};
  int64_t bytes = WorkspaceBytes(shape, 1);
  EXPECT_GE(bytes, kHeaderBytes);
  for (int32_t rows = 2; rows <= 65536; rows *= 2) {
    EXPECT_GE(WorkspaceBytes(shape, rows), bytes);
    bytes = WorkspaceBytes(shape, rows);
  }
  // Plans are as many as regions have rows.
  EXPECT_LT(bytes, 8 << 20);
}

}  // namespace
}  // namespace kvtier::cuda
