// All recorded traces through the kernels, without a daemon: exact totals, and every row that a
// step hands out holds the bytes of the position that was asked for.
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "client/demo/eviction_model.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu.h"
#include "kernels/params.h"
#include "kernels/reference/reference.h"
#include "kernels/stats_block.h"
#include "tests/traces/documents.h"

namespace kvtier::traces {
namespace {

constexpr int32_t kRowBytes = 16;
constexpr int32_t kBlockSize = 64;
constexpr int32_t kBlocks = kPositions / kBlockSize;  // of one document
constexpr auto kRegions = static_cast<int32_t>(kDocuments.size());
constexpr int32_t kSlots = kRegions * kPositions;

struct Kernels {
  std::function<void(const SwapInParams&)> swap_in;
  std::function<void(const BackupParams&)> backup;
};

Kernels OfReference() { return {reference::SwapIn, reference::Backup}; }
Kernels OfCpu(cpu::Executor* executor) {
  return {[executor](const SwapInParams& params) { cpu::SwapIn(params, *executor); },
          [executor](const BackupParams& params) { cpu::Backup(params, *executor); }};
}

// The memory of one layer group of one layer, every row backed up, every region empty. A block
// table that scatters each document's blocks over the pool.
class Group {
 public:
  Group(int32_t layer, EvictionPolicy policy)
      : layer_(layer),
        policy_(policy),
        host_(int64_t{kSlots} * kRowBytes),
        hot_(int64_t{kRegions} * Shape().region_stride * kRowBytes),
        owner_(kRegions * kHotSize, kNone),
        lru_(kRegions * kHotSize),
        score_(kRegions * kHotSize),
        kept_(kRegions, kNone),
        block_table_(kRegions * kBlocks),
        hot_indices_(kRegions * kTopK),
        rows_(kRegions) {
    for (int32_t region = 0; region < kRegions; ++region) {
      std::iota(lru_.begin() + region * kHotSize, lru_.begin() + (region + 1) * kHotSize, 0);
      rows_[region] = region;
      for (int32_t i = 0; i < kBlocks; ++i) {
        // 1531 is prime and does not divide the number of blocks, so this is a permutation.
        block_table_[region * kBlocks + i] =
            static_cast<int32_t>(int64_t{region * kBlocks + i} * 1531 % (kRegions * kBlocks));
      }
      for (int32_t position = 0; position < kPositions; ++position) {
        const std::vector<int32_t> row = RowOf(region, position);
        std::memcpy(&host_[int64_t{SlotOf(region, position)} * kRowBytes], row.data(), kRowBytes);
      }
    }
  }

  // One step of all documents, then the backup of its rows. `topk` [kRegions, kTopK].
  void Step(const Kernels& kernels, const std::vector<int32_t>& topk, int32_t own_position) {
    std::vector<int32_t> newest(kRegions);
    for (int32_t region = 0; region < kRegions; ++region) {
      newest[region] = SlotOf(region, own_position);
      const std::vector<int32_t> row = RowOf(region, own_position);
      const int32_t newest_row = region * Shape().region_stride + kHotSize;
      std::memcpy(&hot_[int64_t{newest_row} * kRowBytes], row.data(), kRowBytes);
    }
    const LayerView layer = {
        host_.data(), hot_.data(), {.value_bytes = kRowBytes, .row_stride = kRowBytes}};
    const GroupState state = {
        .owner = owner_.data(), .lru = lru_.data(), .score = score_.data(), .kept = kept_.data()};
    kernels.swap_in({.shape = Shape(),
                     .state = state,
                     .num_rows = kRegions,
                     .row_to_request = rows_.data(),
                     .topk = topk.data(),
                     .newest_slot = newest.data(),
                     .block_table = block_table_.data(),
                     .hot_indices = hot_indices_.data(),
                     .layers = &layer,
                     .layer_count = 1,
                     .stats = &stats_});
    for (int32_t i = 0; i < kRegions * kTopK; ++i) {
      const std::vector<int32_t> row = RowOf(i / kTopK, topk[i]);
      ASSERT_GE(hot_indices_[i], 0);
      ASSERT_EQ(std::memcmp(&hot_[int64_t{hot_indices_[i]} * kRowBytes], row.data(), kRowBytes), 0)
          << "layer " << layer_ << ", document " << i / kTopK << ", position " << topk[i];
    }
    kernels.backup({.shape = Shape(),
                    .state = state,
                    .num_rows = kRegions,
                    .row_to_request = rows_.data(),
                    .slots = newest.data(),
                    .layers = &layer,
                    .layer_count = 1});
  }

  Counts counts() const {
    Counts counts;
    EXPECT_TRUE(ReadCounts(&stats_, &counts));
    return counts;
  }

 private:
  GroupShape Shape() const {
    return {.top_k = kTopK,
            .hot_size = kHotSize,
            .region_count = kRegions,
            .region_stride = RegionStride(kHotSize, ReservedRows(1, policy_)),
            .block_size = kBlockSize,
            .slot_count = kSlots,
            .max_blocks = kBlocks,
            .policy = policy_};
  }
  std::vector<int32_t> RowOf(int32_t region, int32_t position) const {
    return {layer_, region, position, ~position};
  }
  int32_t SlotOf(int32_t region, int32_t position) const {
    return ResolveSlot(&block_table_[region * kBlocks], kBlocks, kBlockSize, kNone, position);
  }

  const int32_t layer_;
  const EvictionPolicy policy_;
  std::vector<uint8_t> host_, hot_;
  std::vector<int32_t> owner_;
  std::vector<int16_t> lru_;
  std::vector<uint8_t> score_;
  std::vector<int32_t> kept_;
  std::vector<int32_t> block_table_, hot_indices_, rows_;
  StatsBlock stats_;
};

void ExpectRecordedTotals(EvictionPolicy policy, const Kernels& kernels) {
  const absl::StatusOr<std::vector<client::Trace>> traces = LoadDocuments();
  ASSERT_TRUE(traces.ok()) << traces.status();
  Counts total;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    Group group(layer, policy);
    for (int32_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> topk;
      for (const client::Trace& trace : *traces) {
        const auto positions = trace.positions_of(layer, step);
        topk.insert(topk.end(), positions.begin(), positions.end());
      }
      group.Step(kernels, topk, traces->front().own_position(step));
      if (testing::Test::HasFatalFailure()) return;
    }
    const Counts counts = group.counts();
    for (int32_t c = 0; c < kCounterCount; ++c) total.values[c] += counts.values[c];
  }
  const bool is_lru = policy == EvictionPolicy::kLru;
  const int64_t misses = is_lru ? kMisses : kAgedMisses;
  EXPECT_EQ(total[Counter::kHits], is_lru ? kHits : kAgedHits);
  EXPECT_EQ(total[Counter::kMisses], misses);
  EXPECT_EQ(total[Counter::kNewest], kNewest);
  EXPECT_EQ(total[Counter::kInvalid] + total[Counter::kDuplicates], 0);
  EXPECT_EQ(total[Counter::kRowsCopied], misses);
  const int64_t kept = is_lru ? 0 : kAgedKept;
  EXPECT_EQ(total[Counter::kRowsKept], kept);
  EXPECT_EQ(total[Counter::kBytesCopied], (misses - kept) * kRowBytes);
  EXPECT_EQ(total[Counter::kSteps], kLayers * kSteps);
}

TEST(RecordedTraces, TheTracesAreWhatTheReadmeSays) {
  const absl::StatusOr<std::vector<client::Trace>> traces = LoadDocuments();
  ASSERT_TRUE(traces.ok()) << traces.status();
  for (const client::Trace& trace : *traces) {
    EXPECT_EQ(trace.layer_count, kLayers);
    EXPECT_EQ(trace.step_count, kSteps);
    EXPECT_EQ(trace.top_k, kTopK);
    EXPECT_EQ(trace.own_position(kSteps - 1), kPositions - 1);
  }
  EXPECT_EQ(kHits + kMisses + kNewest, int64_t{kRegions} * kLayers * kSteps * kTopK);
}

class ReplayKernels : public testing::TestWithParam<EvictionPolicy> {};

TEST_P(ReplayKernels, Reference) { ExpectRecordedTotals(GetParam(), OfReference()); }

TEST_P(ReplayKernels, CpuOneThread) {
  cpu::Executor executor(1);
  ExpectRecordedTotals(GetParam(), OfCpu(&executor));
}

TEST_P(ReplayKernels, CpuThreeThreads) {
  cpu::Executor executor(3);
  ExpectRecordedTotals(GetParam(), OfCpu(&executor));
}

// The model that the demo compares the daemon's statistics with.
TEST_P(ReplayKernels, Model) {
  const absl::StatusOr<std::vector<client::Trace>> traces = LoadDocuments();
  ASSERT_TRUE(traces.ok()) << traces.status();
  demo::StepCounts total;
  for (const client::Trace& trace : *traces) {
    for (int32_t layer = 0; layer < trace.layer_count; ++layer) {
      demo::EvictionModel model(kHotSize, GetParam());
      for (int32_t step = 0; step < trace.step_count; ++step) {
        const demo::StepCounts counts =
            model.Step(trace.positions_of(layer, step), trace.own_position(step));
        model.Backup(trace.own_position(step));
        total.hits += counts.hits;
        total.misses += counts.misses;
        total.newest += counts.newest;
        total.kept += counts.kept;
      }
    }
  }
  const bool is_lru = GetParam() == EvictionPolicy::kLru;
  EXPECT_EQ(total.hits, is_lru ? kHits : kAgedHits);
  EXPECT_EQ(total.misses, is_lru ? kMisses : kAgedMisses);
  EXPECT_EQ(total.newest, kNewest);
  EXPECT_EQ(total.kept, is_lru ? 0 : kAgedKept);
}

INSTANTIATE_TEST_SUITE_P(Policies, ReplayKernels,
                         testing::Values(EvictionPolicy::kLru, EvictionPolicy::kAged),
                         [](const auto& info) {
                           return info.param == EvictionPolicy::kLru ? "Lru" : "Aged";
                         });

}  // namespace
}  // namespace kvtier::traces
