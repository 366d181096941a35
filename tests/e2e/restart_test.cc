// A daemon whose pool outlives it: kill -9, clean stops, workers that live on, and caches that
// outlive their workers. Cases D03 and D05 with a pool folder.
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cache.h"
#include "client/error.h"
#include "client/request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/fixture.h"

namespace kvtier::e2e {
namespace {

using ::testing::SizeIs;

constexpr int32_t kBlocks = 32;

class RestartTest : public ::testing::Test {
 protected:
  RestartTest() {
    char name[] = "/dev/shm/kvtier-e2e-XXXXXX";
    folder_ = mkdtemp(name);
    daemon_.emplace(DaemonOptions{.flags = {"--pool_path=" + folder_ + "/pool"}});
  }
  ~RestartTest() override {
    daemon_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Daemon& daemon() { return *daemon_; }
  // A session and its cache; both end together.
  struct Worker {
    client::Session session;
    client::Cache cache;
  };
  std::optional<Worker> Attach(std::optional<v1::Retention> retain = std::nullopt) {
    absl::StatusOr<client::Session> session = daemon_->Open("worker");
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return std::nullopt;
    absl::StatusOr<client::Cache> cache =
        client::Cache::Attach(*session, {.cache = "tiny",
                                         .layout = TinyLayout(kBlocks, /*max_requests=*/8),
                                         .wait_for_pool = kPatience,
                                         .retain = std::move(retain)});
    EXPECT_TRUE(cache.ok()) << cache.status();
    if (!cache.ok()) return std::nullopt;
    return Worker{*std::move(session), *std::move(cache)};
  }
  // The byte at `position` of `request`, by a step; -1: masked, or not one byte throughout.
  static int ByteAt(Worker& worker, const client::Request& request, int32_t position) {
    SetStep(&worker.cache, request, {position});
    EXPECT_TRUE(worker.cache.SwapIn(0, 1).ok());
    return ValueAt(worker.cache, 0);
  }

  std::string folder_;
  std::optional<Daemon> daemon_;
};

v1::Retention RetainFor(absl::Duration duration) {
  v1::Retention retention;
  retention.mutable_duration()->set_seconds(absl::ToInt64Seconds(duration));
  return retention;
}

TEST_F(RestartTest, CompletedBackupsSurviveAKilledAndAStoppedDaemon) {
  client::SharedBlocks mine;
  {
    std::optional<Worker> worker = Attach();
    EXPECT_TRUE(worker->cache.created());
    absl::StatusOr<client::Request> request = worker->cache.Admit("r");
    ASSERT_TRUE(request.ok()) << request.status();
    const std::vector<int64_t> tags = {7, -8};
    const absl::StatusOr<client::AssignedBlocks> blocks = request->AssignBlocks(2, {}, tags);
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    mine = {blocks->block_ids, blocks->generations};
    ASSERT_TRUE(BackupRows(&worker->cache, *request, 0, 6, 0x5a).ok());
    daemon().Kill();
  }
  for (int run = 0; run < 3; ++run) {
    SCOPED_TRACE(run);
    daemon().Start();
    std::optional<Worker> worker = Attach();
    EXPECT_FALSE(worker->cache.created());
    EXPECT_EQ(worker->cache.blocks_kept(), 2);
    const absl::StatusOr<std::vector<v1::KeptBlock>> kept = worker->cache.ListKeptBlocks();
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_THAT(*kept, SizeIs(2));
    EXPECT_EQ((*kept)[0].tag(), 7);
    EXPECT_EQ((*kept)[1].tag(), -8);
    EXPECT_EQ((*kept)[0].rows_backed(), 4);
    EXPECT_EQ((*kept)[1].rows_backed(), 2);

    absl::StatusOr<client::Request> request = worker->cache.Admit("r");
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_TRUE(request->AssignBlocks(0, mine).ok());
    for (int32_t position = 0; position < 6; ++position) {
      EXPECT_EQ(ByteAt(*worker, *request, position), 0x5a);
    }
    EXPECT_EQ(worker->cache.counts(0)[Counter::kUnbackedReads], 0);
    EXPECT_EQ(worker->cache.counts(0)[Counter::kHits], 0) << "hot buffers start empty";
    EXPECT_EQ(ByteAt(*worker, *request, 6), 0) << "it was never backed up";
    EXPECT_EQ(worker->cache.counts(0)[Counter::kUnbackedReads], 1);
    if (run == 0) {
      daemon().Kill();
    } else {
      EXPECT_EQ(daemon().Stop(), 0);
    }
  }
}

// The worker of before lives on, and has the pool mapped.
TEST_F(RestartTest, BlocksOfALivingWorkerAreItsOwn) {
  std::optional<Worker> before = Attach();
  absl::StatusOr<client::Request> request = before->cache.Admit("r");
  ASSERT_TRUE(request.ok());
  ASSERT_TRUE(request->AssignBlocks(3).ok());
  daemon().Kill();
  daemon().Start();
  std::optional<Worker> other = Attach();
  absl::StatusOr<client::Request> greedy = other->cache.Admit("greedy");
  ASSERT_TRUE(greedy.ok());
  EXPECT_EQ(client::ErrorReasonOf(greedy->AssignBlocks(kBlocks).status()), "BLOCKS_EXHAUSTED");
  ASSERT_TRUE(greedy->AssignBlocks(kBlocks - 3).ok());
  EXPECT_EQ(client::ErrorReasonOf(greedy->AssignBlocks(1).status()), "BLOCKS_EXHAUSTED");
  EXPECT_EQ(daemon().Stats().caches(0).blocks_kept(), 3);
  // Its memory is unmapped: they are anybody's.
  request = absl::CancelledError();
  before.reset();
  absl::Status assigned = absl::UnknownError("");
  for (const absl::Time start = absl::Now(); !assigned.ok() && absl::Now() - start < kPatience;) {
    assigned = greedy->AssignBlocks(3).status();
    sched_yield();
  }
  EXPECT_TRUE(assigned.ok()) << assigned;
}

// Takes blocks, backs them up and gives them back, until its daemon is gone. A block's tag says
// which byte its rows consist of.
void Churn(client::Session& session, client::Cache& cache, uint32_t seed,
           std::atomic<int64_t>* calls) {
  std::mt19937 random(seed);
  std::map<int, client::Request> requests;
  while (session.status().ok()) {
    const int which = static_cast<int>(random() % 8);
    ++*calls;
    const auto found = requests.find(which);
    if (found != requests.end() && random() % 2 == 0) {
      requests.erase(found);
      continue;
    }
    if (found == requests.end()) {
      absl::StatusOr<client::Request> admitted = cache.Admit(absl::StrCat("r", which));
      if (!admitted.ok()) continue;
      requests.emplace(which, *std::move(admitted));
    }
    client::Request& request = requests.at(which);
    const std::vector<int64_t> tag = {1 + static_cast<int64_t>(random() % 250)};
    const auto blocks = request.AssignBlocks(1, {}, tag);
    if (!blocks.ok()) continue;
    for (int32_t k = 0; k < kBlockSize; ++k) {
      if (!BackupRows(&cache, request, blocks->table_index * kBlockSize + k, 1,
                      static_cast<uint8_t>(tag[0]))
               .ok()) {
        break;
      }
    }
  }
}

// Takes up every kept block. Rows that are backed have the bytes that the tag says, the others are
// zeros. Returns how many are backed.
int64_t CheckKept(client::Cache& cache) {
  int64_t checked = 0;
  const auto kept = cache.ListKeptBlocks();
  absl::StatusOr<client::Request> request = cache.Admit("check");
  EXPECT_TRUE(kept.ok() && request.ok()) << kept.status() << request.status();
  if (!kept.ok() || !request.ok()) return 0;
  int32_t position = 0;
  for (const v1::KeptBlock& block : *kept) {
    EXPECT_TRUE(request->AssignBlocks(0, {{block.block_id()}, {block.generation()}}).ok());
    int32_t backed = 0;
    for (int32_t k = 0; k < kBlockSize; ++k, ++position) {
      const int64_t unbacked = cache.counts(0)[Counter::kUnbackedReads];
      SetStep(&cache, *request, {position});
      EXPECT_TRUE(cache.SwapIn(0, 1).ok());
      const bool is_backed = cache.counts(0)[Counter::kUnbackedReads] == unbacked;
      EXPECT_EQ(ValueAt(cache, 0), is_backed ? block.tag() : 0) << "block " << block.block_id();
      backed += is_backed ? 1 : 0;
    }
    EXPECT_EQ(backed, block.rows_backed());
    checked += backed;
  }
  return checked;
}

// Killed at any moment: whatever is kept and backed has the bytes that were written for it.
TEST_F(RestartTest, WhateverIsKeptIsRight) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  int64_t checked = 0;
  for (int run = 0; run < 12; ++run) {
    {
      std::optional<Worker> worker = Attach();
      ASSERT_TRUE(worker.has_value());
      std::atomic<int64_t> calls{0};
      std::thread engine([&worker, &calls, worker_seed = random()] {
        Churn(worker->session, worker->cache, worker_seed, &calls);
      });
      const auto enough = static_cast<int64_t>(20 + random() % 300);
      const absl::Time give_up = absl::Now() + kPatience;
      while (calls < enough && absl::Now() < give_up) sched_yield();
      daemon().Kill();
      engine.join();
    }
    daemon().Start();
    std::optional<Worker> checker = Attach();
    ASSERT_TRUE(checker.has_value());
    EXPECT_FALSE(checker->cache.created());
    checked += CheckKept(checker->cache);
    daemon().Kill();
    daemon().Start();
  }
  EXPECT_GT(checked, 0);
  RecordProperty("rows_checked", absl::StrCat(checked));
}

TEST_F(RestartTest, ACacheOutlivesItsWorkers) {
  {
    std::optional<Worker> worker = Attach(RetainFor(absl::Minutes(10)));
    absl::StatusOr<client::Request> request = worker->cache.Admit("r");
    ASSERT_TRUE(request.ok());
    ASSERT_TRUE(request->AssignBlocks(1, {}, std::vector<int64_t>{42}).ok());
    ASSERT_TRUE(BackupRows(&worker->cache, *request, 0, 4, 0x21).ok());
    // The session breaks, and the requests are not released.
    { const client::Session dies = std::move(worker->session); }
  }
  ASSERT_TRUE(daemon().WaitForStats([](const v1::GetStatsResponse& stats) {
    return stats.sessions() == 0 && stats.caches_size() == 1 && stats.caches(0).blocks_kept() == 1;
  }));
  grpc::ClientContext context;
  v1::ListCachesResponse caches;
  ASSERT_TRUE(daemon().admin().ListCaches(&context, {}, &caches).ok());
  ASSERT_EQ(caches.caches_size(), 1);
  EXPECT_EQ(caches.caches(0).blocks_kept(), 1);
  EXPECT_EQ(caches.caches(0).retain().duration().seconds(), 600);
  EXPECT_TRUE(caches.caches(0).has_expires_time());

  std::optional<Worker> next = Attach();
  const auto kept = next->cache.ListKeptBlocks();
  ASSERT_TRUE(kept.ok());
  ASSERT_THAT(*kept, SizeIs(1));
  EXPECT_EQ((*kept)[0].tag(), 42);
  absl::StatusOr<client::Request> request = next->cache.Admit("r");
  ASSERT_TRUE(request.ok());
  ASSERT_TRUE(request->AssignBlocks(0, {{(*kept)[0].block_id()}, {(*kept)[0].generation()}}).ok());
  EXPECT_EQ(ByteAt(*next, *request, 3), 0x21);
}

}  // namespace
}  // namespace kvtier::e2e
