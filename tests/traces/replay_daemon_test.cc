// All recorded traces through a real daemon, on both planes: exact totals, read by GetStats.
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "client/steps.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/traces/documents.h"

namespace kvtier::traces {
namespace {

constexpr int32_t kRowBytes = 16;
constexpr int32_t kBlockSize = 64;
constexpr int32_t kBlocks = kPositions / kBlockSize;  // of one document
constexpr auto kRequests = static_cast<int32_t>(kDocuments.size());

// By the worker, or by the daemon; the cache's policy.
using Setting = std::tuple<bool, v1::EvictionPolicy>;

class ReplayDaemonTest : public ::testing::TestWithParam<Setting> {
 protected:
  // A cache of one group a recorded layer, of one layer each.
  void Attach() {
    v1::CacheLayout layout;
    layout.set_block_size(kBlockSize);
    layout.set_block_count(kRequests * kBlocks);
    layout.set_max_requests(kRequests);
    layout.set_eviction_policy(policy_);
    for (int32_t g = 0; g < kLayers; ++g) {
      v1::LayerGroupLayout* group = layout.add_groups();
      group->set_top_k(kTopK);
      group->set_hot_size(kHotSize);
      v1::LayerLayout* layer = group->add_layers();
      layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
      layer->set_row_bytes(kRowBytes);
    }
    absl::StatusOr<client::Session> session = daemon_.Open("replay");
    ASSERT_TRUE(session.ok()) << session.status();
    session_.emplace(*std::move(session));
    absl::StatusOr<client::Cache> cache = client::Cache::Attach(
        *session_, {.cache = "traces", .layout = layout, .wait_for_pool = e2e::kPatience});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_.emplace(*std::move(cache));
  }

  // A request a document, with blocks for all its positions and every row backed up.
  void Admit() {
    for (const char* document : kDocuments) {
      absl::StatusOr<client::Request> request = cache_->Admit(document);
      ASSERT_TRUE(request.ok()) << request.status();
      requests_.push_back(*std::move(request));
      const auto blocks = requests_.back().AssignBlocks(kBlocks);
      ASSERT_TRUE(blocks.ok()) << blocks.status();
      for (int32_t g = 0; g < kLayers; ++g) Backup(requests_.back(), g);
    }
  }

  std::vector<int32_t> RowOf(const client::Request& request, int32_t group, int32_t position) {
    return {request.region(), group, position, ~position};
  }

  void Backup(const client::Request& request, int32_t group) {
    std::vector<int32_t> bytes, rows, slots;
    for (int32_t position = 0; position < kPositions; ++position) {
      const std::vector<int32_t> row = RowOf(request, group, position);
      bytes.insert(bytes.end(), row.begin(), row.end());
      rows.push_back(position);
      slots.push_back(request.SlotOf(position));
    }
    const std::vector<client::TensorLayer> tensor = {
        {reinterpret_cast<const uint8_t*>(bytes.data()),
         {.value_bytes = kRowBytes, .row_stride = kRowBytes}}};
    const absl::Status status = cache_->BackupTensor(group, tensor, kPositions, rows, slots);
    ASSERT_TRUE(status.ok()) << status;
  }

  // The newest rows, once everybody has looked at the step.
  void BackUp() {
    if (!by_rpc_) {
      ASSERT_TRUE(cache_->BackupNewest(kRequests).ok());
      return;
    }
    ASSERT_TRUE(steps_->Backup(kRequests, /*wait=*/true).ok());
    Drain();
  }

  void Step(const std::vector<client::Trace>& traces, int32_t step) {
    const client::CacheView& view = cache_->view();
    *view.num_real_rows = kRequests;
    for (int32_t i = 0; i < kRequests; ++i) {
      const client::Request& request = requests_[i];
      const int32_t own = traces[i].own_position(step);
      view.row_to_request[i] = request.region();
      view.newest_slot[i] = request.SlotOf(own);
      for (int32_t g = 0; g < kLayers; ++g) {
        const client::GroupView& group = view.groups[g];
        const auto positions = traces[i].positions_of(g, step);
        std::copy(positions.begin(), positions.end(), group.topk.begin() + i * kTopK);
        std::memcpy(group.layers[0].hot.value(group.newest_hot_row(request.region())).data(),
                    RowOf(request, g, own).data(), kRowBytes);
      }
    }
    Run();
  }

  void Run() {
    for (int32_t g = 0; g < kLayers; ++g) {
      if (!by_rpc_) {
        ASSERT_TRUE(cache_->SwapIn(g, kRequests).ok());
      } else {
        ASSERT_TRUE(steps_->SwapIn(g, kRequests, {}, /*wait=*/g == kLayers - 1).ok());
      }
    }
    Drain();
  }

  void Drain() {
    while (by_rpc_ && steps_->in_flight() > 0) {
      const absl::StatusOr<client::StepResult> result = steps_->Next();
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(result->status.ok()) << result->status;
    }
  }

  void CheckRows(const std::vector<client::Trace>& traces, int32_t step) {
    for (int32_t g = 0; g < kLayers; ++g) {
      const client::GroupView& group = cache_->view().groups[g];
      for (int32_t i = 0; i < kRequests * kTopK; ++i) {
        const int32_t position = traces[i / kTopK].positions_of(g, step)[i % kTopK];
        const std::span<const uint8_t> row = group.layers[0].hot.value(group.hot_indices[i]);
        ASSERT_FALSE(row.empty());
        const std::vector<int32_t> expected = RowOf(requests_[i / kTopK], g, position);
        ASSERT_EQ(std::memcmp(row.data(), expected.data(), kRowBytes), 0)
            << "step " << step << ", group " << g << ", position " << position;
      }
    }
  }

  const bool by_rpc_ = std::get<0>(GetParam());
  const v1::EvictionPolicy policy_ = std::get<1>(GetParam());
  e2e::Daemon daemon_;
  std::optional<client::Session> session_;
  std::optional<client::Cache> cache_;
  std::vector<client::Request> requests_;
  std::optional<client::Steps> steps_;
};

TEST_P(ReplayDaemonTest, CountsTheRecordedTotals) {
  const absl::StatusOr<std::vector<client::Trace>> traces = LoadDocuments();
  ASSERT_TRUE(traces.ok()) << traces.status();
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_NO_FATAL_FAILURE(Admit());
  if (by_rpc_) {
    absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache_);
    ASSERT_TRUE(steps.ok()) << steps.status();
    steps_.emplace(*std::move(steps));
  }
  for (int32_t step = 0; step < kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step(*traces, step));
    ASSERT_NO_FATAL_FAILURE(CheckRows(*traces, step));
    ASSERT_NO_FATAL_FAILURE(BackUp());
  }
  const v1::GetStatsResponse stats = daemon_.Stats();
  ASSERT_EQ(stats.caches_size(), 1);
  const bool is_aged = policy_ == v1::EVICTION_POLICY_AGED;
  const int64_t misses = is_aged ? kAgedMisses : kMisses;
  const int64_t kept = is_aged ? kAgedKept : 0;
  for (const v1::Counters& counters : {stats.counters(), stats.caches(0).counters()}) {
    EXPECT_EQ(counters.hits(), is_aged ? kAgedHits : kHits);
    EXPECT_EQ(counters.misses(), misses);
    EXPECT_EQ(counters.newest(), kNewest);
    EXPECT_EQ(counters.rows_copied(), misses);
    EXPECT_EQ(counters.rows_kept(), kept);
    EXPECT_EQ(counters.bytes_copied(), (misses - kept) * kRowBytes);
    EXPECT_EQ(counters.unbacked_reads(), 0);
    EXPECT_EQ(counters.steps(), int64_t{kLayers} * kSteps);
    EXPECT_NEAR(counters.hit_rate(), is_aged ? 0.8777 : 0.8645, 0.00005);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Planes, ReplayDaemonTest,
    ::testing::Combine(::testing::Bool(), ::testing::Values(v1::EVICTION_POLICY_UNSPECIFIED,
                                                            v1::EVICTION_POLICY_AGED)),
    [](const auto& info) {
      const std::string plane = std::get<0>(info.param) ? "Rpc" : "InProcess";
      return plane + (std::get<1>(info.param) == v1::EVICTION_POLICY_AGED ? "Aged" : "");
    });

}  // namespace
}  // namespace kvtier::traces
