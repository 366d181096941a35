// Two sessions on one cache: one copy of the host rows, hot buffers of their own, and blocks that
// are recycled from one to the other. Cases K10, K11, K20 and D05 across sessions.
#include <optional>
#include <string>
#include <vector>

#include "client/cache.h"
#include "client/error.h"
#include "client/request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/fixture.h"

namespace kvtier::e2e {
namespace {

using ::testing::ElementsAre;

class SharingTest : public ::testing::TestWithParam<bool> {
 protected:
  SharingTest() : session_a_(Open("a")), session_b_(Open("b")) {
    cache_a_.emplace(Attach(*session_a_));
    cache_b_.emplace(Attach(*session_b_));
  }

  std::optional<client::Session> Open(const std::string& name) {
    absl::StatusOr<client::Session> session = daemon_.Open(name);
    EXPECT_TRUE(session.ok()) << session.status();
    return std::optional<client::Session>(*std::move(session));
  }
  static client::Cache Attach(const client::Session& session) {
    absl::StatusOr<client::Cache> cache = AttachTiny(session);
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  static client::Request Admit(client::Cache* cache, const std::string& id) {
    absl::StatusOr<client::Request> request = cache->Admit(id);
    EXPECT_TRUE(request.ok()) << request.status();
    return *std::move(request);
  }
  // One step in the plane of this test.
  static void Run(client::Cache* cache) {
    const absl::Status status =
        GetParam() ? cache->SwapInRpc(0, 1, {}, /*wait=*/true).status() : cache->SwapIn(0, 1);
    ASSERT_TRUE(status.ok()) << status;
  }
  static void BackupNewest(client::Cache* cache) {
    const absl::Status status =
        GetParam() ? cache->BackupRpc(1, /*wait=*/true).status() : cache->BackupNewest(1);
    ASSERT_TRUE(status.ok()) << status;
  }

  Daemon daemon_;
  std::optional<client::Session> session_a_, session_b_;
  std::optional<client::Cache> cache_a_, cache_b_;
};

TEST_P(SharingTest, OneWritesTheOtherReads) {
  EXPECT_TRUE(cache_a_->created());
  EXPECT_FALSE(cache_b_->created());
  client::Request a = Admit(&*cache_a_, "a");
  const absl::StatusOr<client::AssignedBlocks> blocks = a.AssignBlocks(2);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  ASSERT_TRUE(BackupRows(&*cache_a_, a, 0, 8, 0xa1).ok());

  client::Request b = Admit(&*cache_b_, "b");
  const absl::StatusOr<client::AssignedBlocks> shared =
      b.AssignBlocks(0, {.block_ids = blocks->block_ids, .generations = blocks->generations});
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->block_ids, blocks->block_ids);
  SetStep(&*cache_b_, b, {0, 7, 3});
  Run(&*cache_b_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ValueAt(*cache_b_, i), 0xa1);
  EXPECT_EQ(cache_b_->counts(0)[Counter::kMisses], 3);
  EXPECT_EQ(cache_a_->counts(0)[Counter::kMisses], 0) << "hot buffers are each session's own";

  // A stale generation is refused, and nothing is appended.
  client::Request late = Admit(&*cache_b_, "late");
  const absl::Status stale = late.AssignBlocks(0, {.block_ids = {blocks->block_ids[0]},
                                                   .generations = {blocks->generations[0] + 1}})
                                 .status();
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition) << stale;
  EXPECT_EQ(client::ErrorReasonOf(stale), "GENERATION_STALE");
  EXPECT_EQ(late.SlotOf(0), -1);
}

// K10 and K11: both have copies of a block's rows; it is given to a third request. Neither may hit.
TEST_P(SharingTest, ARecycledBlockIsStaleForNobody) {
  client::Request a = Admit(&*cache_a_, "a");
  const absl::StatusOr<client::AssignedBlocks> blocks = a.AssignBlocks(7);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  client::Request rest = Admit(&*cache_a_, "rest");
  ASSERT_TRUE(rest.AssignBlocks(1).ok());  // now none is free
  ASSERT_TRUE(BackupRows(&*cache_a_, a, 0, 28, 0xa1).ok());
  client::Request b = Admit(&*cache_b_, "b");
  ASSERT_TRUE(b.AssignBlocks(0, {.block_ids = blocks->block_ids}).ok());
  for (auto [cache, request] : {std::pair(&*cache_a_, &a), std::pair(&*cache_b_, &b)}) {
    SetStep(cache, *request, {4, 5, 20});
    Run(cache);
    EXPECT_EQ(ValueAt(*cache, 0), 0xa1);
  }
  // Block of positions 4..7: given up by both, so the only one that is free.
  const std::vector<int32_t> recycled = {blocks->block_ids[1]};
  ASSERT_TRUE(a.FreeBlocks(recycled).ok());
  ASSERT_TRUE(b.FreeBlocks(recycled).ok());
  client::Request c = Admit(&*cache_b_, "c");
  const absl::StatusOr<client::AssignedBlocks> again = c.AssignBlocks(1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->block_ids, recycled);
  EXPECT_EQ(again->invalidated_copies, 4) << "two rows in each of two sessions";
  EXPECT_GT(again->generations[0], blocks->generations[1]);

  // Not backed up yet: zeros and a count, never the tenant before (K20).
  SetStep(&*cache_b_, c, {0, 1});
  Run(&*cache_b_);
  EXPECT_EQ(ValueAt(*cache_b_, 0), 0);
  EXPECT_EQ(cache_b_->counts(0)[Counter::kUnbackedReads], 2);

  ASSERT_TRUE(BackupRows(&*cache_b_, c, 0, 4, 0xc3).ok());
  const absl::StatusOr<client::AssignedBlocks> shared =
      a.AssignBlocks(0, {.block_ids = again->block_ids, .generations = again->generations});
  ASSERT_TRUE(shared.ok()) << shared.status();
  const int32_t position = shared->table_index * kBlockSize;
  SetStep(&*cache_a_, a, {position, position + 1, 20});
  Run(&*cache_a_);
  EXPECT_EQ(ValueAt(*cache_a_, 0), 0xc3);
  EXPECT_EQ(ValueAt(*cache_a_, 1), 0xc3);
  EXPECT_EQ(ValueAt(*cache_a_, 2), 0xa1);
  const Counts counts = cache_a_->counts(0);
  EXPECT_EQ(counts[Counter::kHits], 1) << "position 20 alone was still cached";
  SetStep(&*cache_b_, c, {0, 1});
  Run(&*cache_b_);
  EXPECT_EQ(ValueAt(*cache_b_, 0), 0xc3);
}

// Rows that another session wrote over are dropped when they are said to be.
TEST_P(SharingTest, InvalidateBlocksReachesEverySession) {
  client::Request a = Admit(&*cache_a_, "a");
  const absl::StatusOr<client::AssignedBlocks> blocks = a.AssignBlocks(1);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  ASSERT_TRUE(BackupRows(&*cache_a_, a, 0, 4, 1).ok());
  client::Request b = Admit(&*cache_b_, "b");
  ASSERT_TRUE(b.AssignBlocks(0, {.block_ids = blocks->block_ids}).ok());
  SetStep(&*cache_b_, b, {0, 1});
  Run(&*cache_b_);
  EXPECT_EQ(ValueAt(*cache_b_, 0), 1);
  for (int32_t p = 0; p < 4; ++p) {
    const std::span<uint8_t> row = cache_a_->view().groups[0].layers[0].host.value(a.SlotOf(p));
    std::fill(row.begin(), row.end(), uint8_t{2});
  }
  const absl::StatusOr<int64_t> dropped = cache_a_->InvalidateBlocks(blocks->block_ids);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(*dropped, 2);
  Run(&*cache_b_);
  EXPECT_EQ(ValueAt(*cache_b_, 0), 2);
}

// K20: one new row a step, a hot buffer that is too small to keep them, every row comes back.
TEST_P(SharingTest, EveryNewestRowIsBackedUp) {
  client::Request a = Admit(&*cache_a_, "a");
  ASSERT_TRUE(a.AssignBlocks(8).ok());
  const client::GroupView& group = cache_a_->view().groups[0];
  for (int32_t position = 0; position < 30; ++position) {
    SetStep(&*cache_a_, a, {position, position / 2, position / 3, 0}, a.SlotOf(position));
    const std::span<uint8_t> newest = group.layers[0].hot.value(group.newest_hot_row(a.region()));
    std::fill(newest.begin(), newest.end(), static_cast<uint8_t>(position + 1));
    Run(&*cache_a_);
    const std::vector<int32_t> asked = {position, position / 2, position / 3, 0};
    for (int32_t i = 0; i < kTopK; ++i) ASSERT_EQ(ValueAt(*cache_a_, i), asked[i] + 1);
    BackupNewest(&*cache_a_);
  }
  EXPECT_EQ(cache_a_->counts(0)[Counter::kBackedUpRows], 30);
  EXPECT_EQ(cache_a_->counts(0)[Counter::kUnbackedReads], 0);
  SetStep(&*cache_a_, a, {30});  // assigned, never backed up
  Run(&*cache_a_);
  EXPECT_EQ(ValueAt(*cache_a_, 0), 0);
  EXPECT_EQ(cache_a_->counts(0)[Counter::kUnbackedReads], 1);
}

INSTANTIATE_TEST_SUITE_P(Planes, SharingTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Rpc" : "InProcess"; });

}  // namespace
}  // namespace kvtier::e2e
