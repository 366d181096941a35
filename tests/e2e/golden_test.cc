// The worked example of a swap-in through every way a worker can run a step: the outputs, the
// state it leaves, the bytes, and the counters in this process and from GetStats are the same.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "client/steps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/golden/worked_example.h"

namespace kvtier::e2e {
namespace {

using ::testing::ElementsAreArray;

constexpr int32_t kLayers = 2;

uint8_t ByteOf(int32_t slot, int32_t column, int32_t layer) {
  return static_cast<uint8_t>(31 * slot + 7 * column + 13 * layer);
}

// Runs one step on row 0 of the step buffers, leader and follower.
using RunStep = std::function<absl::Status(client::Cache*)>;

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenTest() {
    absl::StatusOr<client::Session> session = daemon_.Open("golden");
    EXPECT_TRUE(session.ok()) << session.status();
    session_.emplace(*std::move(session));
    v1::CacheLayout layout;
    layout.set_block_size(golden::kBlockSize);
    layout.set_block_count(golden::kSlotCount / golden::kBlockSize);
    layout.set_max_requests(1);
    v1::LayerGroupLayout* group = layout.add_groups();
    group->set_top_k(golden::kTopK);
    group->set_hot_size(golden::kHotSize);
    for (int32_t l = 0; l < kLayers; ++l) {
      v1::LayerLayout* layer = group->add_layers();
      layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
      layer->set_row_bytes(golden::kRowBytes);
    }
    absl::StatusOr<client::Cache> cache = client::Cache::Attach(
        *session_, {.cache = "golden", .layout = layout, .wait_for_pool = kPatience});
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_.emplace(*std::move(cache));
  }

  // The request holds every block, and every row is written and backed.
  void AdmitAndFill() {
    absl::StatusOr<client::Request> request = cache_->Admit("request");
    ASSERT_TRUE(request.ok()) << request.status();
    request_.emplace(*std::move(request));
    ASSERT_EQ(request_->region(), 0);
    const absl::StatusOr<client::AssignedBlocks> blocks =
        request_->AssignBlocks(golden::kSlotCount / golden::kBlockSize);
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    std::vector<int32_t> slots;
    for (int32_t slot = 0; slot < golden::kSlotCount; ++slot) {
      slots.push_back(slot);
      for (int32_t l = 0; l < kLayers; ++l) {
        const std::span<uint8_t> row = group().layers[l].host.value(slot);
        for (int32_t j = 0; j < golden::kRowBytes; ++j) row[j] = ByteOf(slot, j, l);
      }
    }
    ASSERT_TRUE(cache_->MarkBacked(0, slots).ok());
  }

  void Step(const std::array<int32_t, golden::kTopK>& slots, int32_t newest) {
    std::copy(slots.begin(), slots.end(), group().topk.begin());
    cache_->view().row_to_request[0] = 0;
    cache_->view().newest_slot[0] = newest;
    *cache_->view().num_real_rows = 1;
    const absl::Status status = Run();
    ASSERT_TRUE(status.ok()) << status;
  }

  // In the way that the test is about.
  absl::Status Run() {
    const client::SwapInOptions leader = {.use_slots = true, .layers = client::LayerSpan{0, 1}};
    if (GetParam() == "InProcess") {
      if (absl::Status status = cache_->SwapIn(0, 1, leader); !status.ok()) return status;
      return cache_->ReplayPlan(0, 1);
    }
    if (GetParam() == "InProcessAllLayers") return cache_->SwapIn(0, 1, {.use_slots = true});
    if (GetParam() == "RpcAllLayers") {
      return cache_->SwapInRpc(0, 1, {.use_slots = true}, /*wait=*/true).status();
    }
    if (GetParam() == "Rpc") {
      const absl::StatusOr<client::Ticket> first = cache_->SwapInRpc(0, 1, leader);
      if (!first.ok()) return first.status();
      const absl::StatusOr<client::Ticket> second = cache_->ReplayPlanRpc(0, 1);
      if (!second.ok()) return second.status();
      EXPECT_EQ(second->number, first->number + 1);
      return cache_->WaitTicket(second->number).status();
    }
    if (!steps_.has_value()) {
      absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache_);
      if (!steps.ok()) return steps.status();
      steps_.emplace(*std::move(steps));
    }
    absl::Status status = steps_->SwapIn(0, 1, leader).status();
    if (status.ok()) status = steps_->ReplayPlan(0, 1, std::nullopt, /*wait=*/true).status();
    while (status.ok() && steps_->in_flight() > 0) {
      const absl::StatusOr<client::StepResult> result = steps_->Next();
      status = result.ok() ? result->status : result.status();
    }
    return status;
  }

  const client::GroupView& group() const { return cache_->view().groups[0]; }

  void ExpectBytes(int32_t hot_row, int32_t slot) const {
    for (int32_t l = 0; l < kLayers; ++l) {
      const std::span<const uint8_t> row = group().layers[l].hot.value(hot_row);
      for (int32_t j = 0; j < golden::kRowBytes; ++j) {
        ASSERT_EQ(row[j], ByteOf(slot, j, l))
            << "slot " << slot << ", layer " << l << ", byte " << j;
      }
    }
  }

  Daemon daemon_;
  std::optional<client::Session> session_;
  std::optional<client::Cache> cache_;
  std::optional<client::Request> request_;
  std::optional<client::Steps> steps_;
};

// Cases K01 and O06: the example, and its counters, through every entry.
TEST_P(GoldenTest, WorkedExample) {
  AdmitAndFill();
  for (int32_t step = 0; step < golden::kSetupStepCount; ++step) {
    Step(golden::SetupSlots(step), golden::kSetupNewestSlot);
  }
  ASSERT_THAT(group().owner.first(golden::kHotSize), ElementsAreArray(golden::kOwnerBefore));
  ASSERT_THAT(group().lru.first(golden::kHotSize), ElementsAreArray(golden::kLruBefore));
  const v1::Counters before = daemon_.Stats().counters();
  EXPECT_EQ(before.hits(), golden::kSetupHits);
  EXPECT_EQ(before.misses(), golden::kSetupMisses);

  Step(golden::kSlots, golden::kNewestSlot);
  EXPECT_THAT(group().hot_indices.first(golden::kTopK), ElementsAreArray(golden::kHotIndices));
  EXPECT_THAT(group().miss_mask.first(golden::kTopK), ElementsAreArray(golden::kMissMask));
  EXPECT_EQ(group().valid_counts[0], golden::kValidCount);
  ASSERT_EQ(group().plan_counts[0], static_cast<int32_t>(golden::kPlanSlots.size()));
  EXPECT_THAT(group().plan_slots.first(2), ElementsAreArray(golden::kPlanSlots));
  EXPECT_THAT(group().plan_hot_rows.first(2), ElementsAreArray(golden::kPlanHotRows));
  EXPECT_THAT(group().owner.first(golden::kHotSize), ElementsAreArray(golden::kOwnerAfter));
  EXPECT_THAT(group().lru.first(golden::kHotSize), ElementsAreArray(golden::kLruAfter));
  for (int32_t i = 0; i < golden::kHotSize; ++i) ExpectBytes(i, golden::kOwnerAfter[i]);

  const v1::Counters after = daemon_.Stats().counters();
  EXPECT_EQ(after.steps() - before.steps(), 1);
  EXPECT_EQ(after.hits() - before.hits(), golden::kHits);
  EXPECT_EQ(after.misses() - before.misses(), golden::kMisses);
  EXPECT_EQ(after.newest() - before.newest(), golden::kNewest);
  EXPECT_EQ(after.invalid() - before.invalid(), golden::kInvalid);
  EXPECT_EQ(after.evictions() - before.evictions(), golden::kEvictions);
  EXPECT_EQ(after.rows_copied() - before.rows_copied(), golden::kMisses);
  EXPECT_EQ(after.bytes_copied() - before.bytes_copied(),
            kLayers * golden::kMisses * golden::kRowBytes);
  EXPECT_EQ(after.unbacked_reads(), 0);
  EXPECT_EQ(cache_->counts(0)[Counter::kHits], after.hits());
  EXPECT_EQ(cache_->counts(0)[Counter::kBytesCopied], after.bytes_copied());
}

INSTANTIATE_TEST_SUITE_P(Planes, GoldenTest,
                         ::testing::Values("InProcess", "InProcessAllLayers", "Rpc", "RpcAllLayers",
                                           "RunSteps"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvtier::e2e
