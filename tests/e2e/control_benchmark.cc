// What the control plane costs when many workers use it at once: a real daemon on the CPU backend,
// its Unix socket, and the client library.
//
//   control_benchmark          needs server/kvtierd in the current folder
//
// Blocks: sessions, a thread each, assign 512 blocks, invalidate them and free them again, 40
// times: one alone, which shows what a call takes; 16 at once, on a cache of their own each, or all
// on one, where an assignment has every session's stream look for old copies: where there are fewer
// processors than that, most of a call's time is waiting for the others. top_k 2048, hot_size 4096,
// 4 requests a session.
// Workers: 64 threads at once open a session, attach to one cache, admit a request, assign 64
// blocks, release it, detach and close; 5 times.
//
// Tables are followed by JSON lines. Percentiles are of single calls, as the caller sees them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"

namespace kvtier::e2e {
namespace {

constexpr int32_t kSessions = 16, kBlocks = 512, kRounds = 40;
constexpr int32_t kWorkers = 64, kWorkerRounds = 5, kWorkerBlocks = 64;
constexpr int32_t kRowBytes = 64;  // no row is moved

v1::CacheLayout Layout(int32_t block_count, int32_t top_k, int32_t max_requests) {
  v1::CacheLayout layout;
  layout.set_block_size(64);
  layout.set_block_count(block_count);
  layout.set_max_requests(max_requests);
  v1::LayerGroupLayout* group = layout.add_groups();
  group->set_top_k(top_k);
  v1::LayerLayout* layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
  layer->set_row_bytes(kRowBytes);
  return layout;
}

// How long calls take, by name, from any thread.
class Timings {
 public:
  using Clock = std::chrono::steady_clock;

  // The result of `call`, which must be OK; a test failure if it isn't.
  template <typename Call>
  auto Of(const std::string& name, const Call& call) {
    const Clock::time_point begin = Clock::now();
    auto result = call();
    Add(name, begin);
    EXPECT_TRUE(result.ok()) << name << ": " << result.status();
    return result;
  }

  void Add(const std::string& name, Clock::time_point begin) {
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    const std::lock_guard<std::mutex> lock(mutex_);
    us_[name].push_back(us);
  }

  void Print(const std::string& benchmark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [name, us] : us_) {
      std::sort(us.begin(), us.end());
      const double p50 = us[us.size() / 2], p99 = us[us.size() * 99 / 100];
      std::printf("| %s | %s | %zu | %.0f | %.0f | %.0f |\n", benchmark.c_str(), name.c_str(),
                  us.size(), p50, p99, us.back());
      std::printf(
          "{\"benchmark\":\"%s\",\"call\":\"%s\",\"calls\":%zu,\"p50_us\":%.1f,\"p99_us\":%.1f,"
          "\"max_us\":%.1f}\n",
          benchmark.c_str(), name.c_str(), us.size(), p50, p99, us.back());
    }
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;  // guards us_
  std::map<std::string, std::vector<double>> us_;
};

void OnThreads(int32_t count, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

void PrintHeader() {
  std::printf(
      "| benchmark | call | calls | p50 us | p99 us | max us |\n|---|---|---|---|---|---|\n");
}

void MeasureBlocks(const std::string& benchmark, int32_t sessions, bool one_cache) {
  Daemon daemon({.pool_bytes = int64_t{512} << 20});
  ASSERT_TRUE(daemon.WaitUntilReady());
  struct Worker {
    client::Session session;
    client::Cache cache;
    client::Request request;
  };
  std::vector<Worker> workers;
  for (int32_t i = 0; i < sessions; ++i) {
    auto session = daemon.Open("bench-" + std::to_string(i));
    ASSERT_TRUE(session.ok()) << session.status();
    auto cache = client::Cache::Attach(
        *session, {.cache = one_cache ? "kv" : "kv-" + std::to_string(i),
                   .layout = Layout(one_cache ? 2 * kSessions * kBlocks : 2 * kBlocks, 2048, 4)});
    ASSERT_TRUE(cache.ok()) << cache.status();
    auto request = cache->Admit("r" + std::to_string(i), 0);
    ASSERT_TRUE(request.ok()) << request.status();
    workers.push_back({*std::move(session), *std::move(cache), *std::move(request)});
  }
  Timings timings;
  OnThreads(sessions, [&](int32_t i) {
    for (int32_t round = 0; round < kRounds; ++round) {
      const auto assigned =
          timings.Of("assign 512 blocks", [&] { return workers[i].request.AssignBlocks(kBlocks); });
      if (!assigned.ok()) return;
      (void)timings.Of("invalidate 512 blocks",
                       [&] { return workers[i].cache.InvalidateBlocks(assigned->block_ids); });
      (void)timings.Of("free 512 blocks",
                       [&] { return workers[i].request.FreeBlocks(assigned->block_ids); });
    }
  });
  workers.clear();
  EXPECT_TRUE(
      daemon.WaitForStats([](const v1::GetStatsResponse& stats) { return stats.sessions() == 0; }));
  timings.Print(benchmark);
  EXPECT_EQ(daemon.Stop(), 0);
}

TEST(ControlBenchmark, BlocksOfManySessions) {
  PrintHeader();
  MeasureBlocks("blocks, 1 session", 1, false);
  MeasureBlocks("blocks, 16 sessions, a cache each", kSessions, false);
  MeasureBlocks("blocks, 16 sessions, one cache", kSessions, true);
}

TEST(ControlBenchmark, ManyWorkersAtOnce) {
  PrintHeader();
  Daemon daemon({.pool_bytes = int64_t{512} << 20});
  ASSERT_TRUE(daemon.WaitUntilReady());
  Timings timings;
  for (int32_t round = 0; round < kWorkerRounds; ++round) {
    OnThreads(kWorkers, [&](int32_t i) {
      const Timings::Clock::time_point begin = Timings::Clock::now();
      auto session =
          timings.Of("open a session", [&] { return daemon.Open("worker-" + std::to_string(i)); });
      if (!session.ok()) return;
      auto cache = timings.Of("attach", [&] {
        return client::Cache::Attach(
            *session, {.cache = "kv", .layout = Layout(kWorkers * kWorkerBlocks, 64, 4)});
      });
      if (!cache.ok()) return;
      auto request = timings.Of("admit", [&] { return cache->Admit("r", 0); });
      if (!request.ok()) return;
      (void)timings.Of("assign 64 blocks", [&] { return request->AssignBlocks(kWorkerBlocks); });
      (void)timings.Of("release", [&] { return request->Release(); });
      timings.Add("all of it", begin);
    });
  }
  timings.Print("64 workers at once");
  EXPECT_EQ(daemon.Stop(), 0);
}

}  // namespace
}  // namespace kvtier::e2e
