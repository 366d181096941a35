// Caches that outlive their sessions, and the daemon.

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Code = absl::StatusCode;

constexpr int32_t kAll = std::numeric_limits<int32_t>::max();

class NodeRetainTest : public NodeFixture {
 protected:
  NodeRetainTest() : NodeRetainTest(/*has_folder=*/false) {}
  explicit NodeRetainTest(bool has_folder)
      : NodeFixture(Options{.manual_clock = true, .has_folder = has_folder}) {}

  Worker AttachRetained(const std::string& cache, absl::Duration duration,
                        int32_t blocks_max = kAll,
                        const CacheLayout& layout = SmallLayout{}.Make()) {
    const std::string session = Open();
    const absl::StatusOr<AttachResult> attached =
        node().AttachCache(session, cache, layout, "", Soon(),
                           {.retain = Retention{.blocks_max = blocks_max, .duration = duration}});
    EXPECT_TRUE(attached.ok()) << attached.status();
    return Attach(session, cache, layout);
  }
  // A request with `tags.size()` blocks, whose first slots are backed up.
  AssignResult Fill(const Worker& worker, const std::string& request,
                    const std::vector<int64_t>& tags, uint8_t salt = 0) {
    const int32_t region = Admit(worker, request);
    const auto assigned =
        node().AssignBlocks(worker.session, worker.cache, request,
                            static_cast<int32_t>(tags.size()), {}, {}, Soon(), tags);
    EXPECT_TRUE(assigned.ok()) << assigned.status();
    for (const int32_t block : assigned->block_ids) {
      const int32_t slot = block * worker.attached.layout.block_size;
      EXPECT_TRUE(BackupPattern(worker, request, region, slot, salt).ok());
    }
    return *assigned;
  }
  void Close(Worker worker) {
    node().CloseSession(worker.session);
    worker.memory.reset();
    WaitUntilReaped(worker.cache);
  }
  // Until the blocks of a closed session are kept, or its cache is gone.
  void WaitUntilReaped(const std::string& cache) {
    while (node().DeviceBytesUsed(kCpuDeviceUuid) > 0) std::this_thread::yield();
    absl::StatusOr<NodeSnapshot> snapshot = node().Snapshot(cache);
    while (snapshot.ok() && snapshot->caches[0].blocks_quarantined > 0) {
      std::this_thread::yield();
      snapshot = node().Snapshot(cache);
    }
  }
  std::vector<int64_t> KeptTags(const Worker& worker) {
    std::vector<int64_t> tags;
    const auto kept = node().ListKeptBlocks(worker.session, worker.cache, 0, 1000);
    EXPECT_TRUE(kept.ok()) << kept.status();
    for (const KeptBlockInfo& block : *kept) tags.push_back(block.tag);
    return tags;
  }
  std::vector<std::string> Caches() {
    std::vector<std::string> names;
    const NodeSnapshot snapshot = *node().Snapshot("");
    for (const CacheSnapshot& cache : snapshot.caches) names.push_back(cache.cache);
    return names;
  }
  // Does a step find the rows that Fill backed up, and only them?
  void ExpectRows(const Worker& worker, const std::string& request, const AssignResult& blocks,
                  uint8_t salt) {
    for (const int32_t block : blocks.block_ids) {
      const int32_t slot = block * worker.attached.layout.block_size;
      const OperationOutcome outcome = SwapInSlots(worker, request, {slot, slot + 1}, -1);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_TRUE(worker.memory->HotRowIs(0, outcome.rows[0].hot_indices[0], slot, salt));
      EXPECT_TRUE(worker.memory->HotRowIsZero(0, outcome.rows[0].hot_indices[1]));
    }
  }
};

TEST_F(NodeRetainTest, BlocksOfADeadSessionAreTakenUpByTheNext) {
  Worker first = AttachRetained("kv", absl::Minutes(1));
  const AssignResult filled = Fill(first, "r", {100, -200}, 5);
  Fill(first, "freed", {300});
  ASSERT_TRUE(node().ReleaseRequest(first.session, "kv", "freed", Soon()).ok());
  Close(std::move(first));

  const CacheSnapshot between = Stats();
  EXPECT_EQ(between.blocks_kept, 2);
  EXPECT_EQ(between.blocks_used, 0);
  EXPECT_THAT(between.sessions, IsEmpty());
  EXPECT_EQ(between.expires_time, clock().Now() + absl::Minutes(1));

  Worker second = OpenAndAttach(SmallLayout{}.Make());
  EXPECT_FALSE(second.attached.created);
  EXPECT_EQ(second.attached.blocks_kept, 2);
  EXPECT_THAT(KeptTags(second), UnorderedElementsAre(100, -200));
  const auto kept = *node().ListKeptBlocks(second.session, "kv", 0, 10);
  EXPECT_EQ(kept[0].rows_backed, 1);
  Admit(second, "again");
  const absl::StatusOr<AssignResult> taken = node().AssignBlocks(
      second.session, "kv", "again", 0, filled.block_ids, filled.generations, Soon());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(KeptTags(second), IsEmpty());
  ExpectRows(second, "again", filled, 5);
  EXPECT_FALSE(Stats().expires_time.has_value());
  // Freed like any block.
  ASSERT_TRUE(node().ReleaseRequest(second.session, "kv", "again", Soon()).ok());
  EXPECT_EQ(Stats().blocks_kept, 0);
}

TEST_F(NodeRetainTest, TimeAndCountBoundIt) {
  Worker first = AttachRetained("kv", absl::Seconds(10), /*blocks_max=*/2);
  Fill(first, "r", {1, 2, 3});
  Close(std::move(first));
  EXPECT_EQ(Stats().blocks_kept, 2);
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  clock().Advance(absl::Seconds(9));
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  // Who comes in time makes it last.
  Worker second = OpenAndAttach(SmallLayout{}.Make());
  clock().Advance(absl::Seconds(9));
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  Close(std::move(second));
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  clock().Advance(absl::Seconds(10));
  EXPECT_THAT(node().EndExpiredCaches(), ElementsAre("kv"));
  EXPECT_THAT(Caches(), IsEmpty());
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  ExpectBaseline();
}

TEST_F(NodeRetainTest, ItEndsWhenNobodyWantsItAnyMore) {
  Worker first = AttachRetained("kv", absl::Minutes(1));
  Fill(first, "r", {1});
  Close(std::move(first));
  EXPECT_EQ(Stats().blocks_kept, 1);
  Worker second = AttachRetained("kv", absl::ZeroDuration());
  EXPECT_EQ(Stats().blocks_kept, 0);
  Close(std::move(second));
  EXPECT_THAT(Caches(), IsEmpty());

  const auto refused = [&](Retention retain) {
    return node()
        .AttachCache(Open(), "kv", SmallLayout{}.Make(), "", Soon(), {.retain = retain})
        .status();
  };
  EXPECT_TRUE(IsError(refused({.blocks_max = 1, .duration = absl::Hours(2)}),
                      Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(IsError(refused({.blocks_max = 1, .duration = -absl::Seconds(1)}),
                      Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(IsError(refused({.blocks_max = -1, .duration = absl::Seconds(1)}),
                      Code::kInvalidArgument, "FIELD_INVALID"));
}

// The pool has room for four caches of one piece each.
TEST_F(NodeRetainTest, AFullPoolTakesTheOneThatEndsFirst) {
  Close(AttachRetained("long", absl::Minutes(30)));
  Close(AttachRetained("short", absl::Minutes(10)));
  Close(AttachRetained("middle", absl::Minutes(20)));
  Worker live = OpenAndAttach(SmallLayout{}.Make(), "live");
  ASSERT_THAT(Caches(), ElementsAre("live", "long", "middle", "short"));
  Worker fifth = OpenAndAttach(SmallLayout{}.Make(), "fifth");
  EXPECT_THAT(Caches(), ElementsAre("fifth", "live", "long", "middle"));
  // What could not be had anyway costs nobody his cache.
  SmallLayout large;
  large.row_bytes = 4096;
  large.block_count = 128;
  const absl::Status refused =
      node().AttachCache(Open(), "sixth", large.Make(), "", Soon()).status();
  EXPECT_TRUE(IsError(refused, Code::kResourceExhausted, "POOL_EXHAUSTED"));
  EXPECT_THAT(Caches(), ElementsAre("fifth", "live", "long", "middle"));
}

TEST_F(NodeRetainTest, FreshBlocksTakeTheOldestKept) {
  SmallLayout small;
  small.block_count = 4;
  const CacheLayout layout = small.Make();
  Worker first = AttachRetained("kv", absl::Minutes(1), kAll, layout);
  Fill(first, "r", {1, 2, 3});
  Close(std::move(first));
  Worker second = OpenAndAttach(layout);
  Admit(second, "r");
  Assign(second, "r", 2);
  EXPECT_EQ(Stats().blocks_kept, 2);
  Assign(second, "r", 2);
  EXPECT_EQ(Stats().blocks_kept, 0);
  EXPECT_TRUE(IsError(node().AssignBlocks(second.session, "kv", "r", 1, {}, {}, Soon()).status(),
                      Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
}

TEST_F(NodeRetainTest, AnotherLayoutReplacesItOnlyIfAsked) {
  Close(AttachRetained("kv", absl::Minutes(1)));
  SmallLayout other;
  other.row_bytes = 128;
  const std::string session = Open();
  EXPECT_TRUE(IsError(node().AttachCache(session, "kv", other.Make(), "", Soon()).status(),
                      Code::kFailedPrecondition, "LAYOUT_MISMATCH"));
  const auto replaced =
      node().AttachCache(session, "kv", other.Make(), "", Soon(), {.replace_kept = true});
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_TRUE(replaced->created);
  // One that somebody uses stays.
  EXPECT_TRUE(IsError(
      node()
          .AttachCache(Open(), "kv", SmallLayout{}.Make(), "", Soon(), {.replace_kept = true})
          .status(),
      Code::kFailedPrecondition, "LAYOUT_MISMATCH"));
}

class NodeRestartTest : public NodeRetainTest {
 protected:
  NodeRestartTest() : NodeRetainTest(/*has_folder=*/true) {}
};

TEST_F(NodeRestartTest, WhatRequestsHeldIsKept) {
  Worker first = OpenAndAttach(SmallLayout{}.Make());
  const AssignResult filled = Fill(first, "r", {100, 200}, 3);
  Fill(first, "freed", {300});
  ASSERT_TRUE(node().ReleaseRequest(first.session, "kv", "freed", Soon()).ok());
  first.memory.reset();
  RestartNode();

  EXPECT_FALSE(node().earlier_workers());
  EXPECT_EQ(Stats().blocks_kept, 2);
  Worker second = OpenAndAttach(SmallLayout{}.Make());
  EXPECT_FALSE(second.attached.created);
  EXPECT_THAT(KeptTags(second), UnorderedElementsAre(100, 200));
  Admit(second, "r");
  ASSERT_TRUE(
      node()
          .AssignBlocks(second.session, "kv", "r", 0, filled.block_ids, filled.generations, Soon())
          .ok());
  ExpectRows(second, "r", filled, 3);
  // An old session is told apart.
  EXPECT_TRUE(IsError(node().AdmitRequest(first.session, "kv", "x", 0, Soon()).status(),
                      Code::kFailedPrecondition, "BOOT_ID_STALE"));
  // Not retained: it ends with its session, now that it has had one, once its time has passed.
  Close(std::move(second));
  clock().Advance(absl::Minutes(5));
  EXPECT_THAT(node().EndExpiredCaches(), ElementsAre("kv"));
  while (!Caches().empty() || pool().stats().used_bytes > 0) std::this_thread::yield();
  RestartNode();
  EXPECT_THAT(Caches(), IsEmpty());
}

TEST_F(NodeRestartTest, RetainedCachesComeBackWithTheirRetention) {
  Worker first = AttachRetained("kv", absl::Minutes(30), 1);
  Fill(first, "r", {1, 2});
  Close(std::move(first));
  RestartNode();
  EXPECT_EQ(Stats().blocks_kept, 1);
  EXPECT_EQ(Stats().retention.duration, absl::Minutes(30));
  EXPECT_EQ(Stats().expires_time, clock().Now() + absl::Minutes(30));
}

// A worker of the node before still maps the pool.
TEST_F(NodeRestartTest, BlocksThatAWorkerMayStillWriteAreNobodyElses) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker first = OpenAndAttach(layout);
  const AssignResult filled = Fill(first, "r", {100, 200}, 3);
  RestartNode();
  ASSERT_TRUE(node().earlier_workers());
  Worker second = OpenAndAttach(layout);
  Admit(second, "r");
  const int32_t free = layout.block_count - 2;
  EXPECT_TRUE(
      IsError(node().AssignBlocks(second.session, "kv", "r", free + 1, {}, {}, Soon()).status(),
              Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  // Who knows the generation may.
  ASSERT_TRUE(node()
                  .AssignBlocks(second.session, "kv", "r", 0, {filled.block_ids[0]},
                                {filled.generations[0]}, Soon())
                  .ok());
  // The cache does not end either, whatever the clock says and whoever leaves.
  Close(std::move(second));
  clock().Advance(absl::Hours(1));
  EXPECT_THAT(node().EndExpiredCaches(), IsEmpty());
  EXPECT_THAT(Caches(), ElementsAre("kv"));
  EXPECT_TRUE(node().earlier_workers());
  first.memory.reset();
  EXPECT_THAT(node().EndExpiredCaches(), ElementsAre("kv"));
  EXPECT_FALSE(node().earlier_workers());
}

TEST_F(NodeRestartTest, ManyRestarts) {
  for (int i = 0; i < 20; ++i) {
    Worker worker = OpenAndAttach(SmallLayout{}.Make());
    EXPECT_EQ(worker.attached.created, i == 0);
    Admit(worker, "r");
    if (i > 0) {
      const auto kept = *node().ListKeptBlocks(worker.session, "kv", 0, 10);
      ASSERT_THAT(kept, SizeIs(1)) << i;
      ASSERT_TRUE(node()
                      .AssignBlocks(worker.session, "kv", "r", 0, {kept[0].block_id},
                                    {kept[0].generation}, Soon())
                      .ok());
      AssignResult blocks;
      blocks.block_ids = {kept[0].block_id};
      ExpectRows(worker, "r", blocks, static_cast<uint8_t>(i - 1));
      ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", "r", Soon()).ok());
      Admit(worker, "r");
    }
    ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", "r", Soon()).ok());
    Fill(worker, "r", {i}, static_cast<uint8_t>(i));
    worker.memory.reset();
    RestartNode();
  }
}

}  // namespace
}  // namespace kvtier
