#include "tests/gpu/pool_gather.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/cuda/launch.h"
#include "server/host_pool/testing/churn.h"
#include "tests/gpu/cuda_arena.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/graph_timer.h"
#include "tests/gpu/pinned_pool.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kRequests = 64, kBlocks = 512, kContext = kBlocks * kPoolBlockSize;
constexpr int32_t kRows = 1024;  // of a request, a plan
constexpr int32_t kPlans = 16, kRepeats = 5;
constexpr int64_t kFirstHolder = int64_t{1} << 40;
constexpr int32_t kEntries = kRequests * kRows;

uint64_t WordOf(int64_t slot, int64_t word) {
  return static_cast<uint64_t>(slot << 8 | word) * 0x9e3779b97f4a7c15u;
}

GroupShape Shape(int32_t block_count) {
  GroupShape shape;
  shape.top_k = kRows;
  shape.hot_size = kRows;
  shape.region_count = kRequests;
  shape.region_stride = RegionStride(kRows, 1);
  shape.block_size = kPoolBlockSize;
  shape.slot_count = block_count * kPoolBlockSize;
  shape.max_blocks = kBlocks;
  return shape;
}

// The order of a request's rows in a plan.
enum class Order { kRandom, kBySlot };

class Gather {
 public:
  Gather(uint8_t* rows, int32_t block_count) : rows_(rows), shape_(Shape(block_count)) {
    RequireCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    std::vector<int32_t> hot_rows;
    for (int32_t r = 0; r < kRequests; ++r) {
      for (int32_t i = 0; i < kRows; ++i) hot_rows.push_back(r * shape_.region_stride + i);
    }
    hot_rows_.Write(hot_rows, stream_);
    counts_.Write(std::vector<int32_t>(kRequests, kRows), stream_);
  }
  ~Gather() { (void)cudaStreamDestroy(stream_); }

  // The rows that plans may name.
  void FillRows(const std::vector<Table>& tables) const {
    ForEach(kRequests, [&](int64_t request) {
      for (const int32_t block : tables[request]) {
        for (int64_t slot = int64_t{block} * kPoolBlockSize;
             slot < (int64_t{block} + 1) * kPoolBlockSize; ++slot) {
          auto* const words = reinterpret_cast<uint64_t*>(rows_ + slot * kPoolRowBytes);
          for (int64_t w = 0; w < kPoolRowBytes / 8; ++w) words[w] = WordOf(slot, w);
        }
      }
    });
  }

  // The best of some repeats. `wrong_rows` grows by those of the last plan that are not right.
  double GigabytesPerSecond(const std::vector<Table>& tables, Order order, int64_t* wrong_rows) {
    const std::vector<int32_t> slots = DrawPlans(tables, order);
    slots_.Write(slots, stream_);
    RequireCuda(cudaMemsetAsync(hot_.data(), 0, HotBytes(), stream_), "memset");
    const double milliseconds = Time();
    *wrong_rows += CountWrongRows(&slots[size_t{kPlans - 1} * kEntries]);
    return static_cast<double>(int64_t{kPlans} * kEntries * kPoolRowBytes) / milliseconds / 1e6;
  }

 private:
  size_t HotBytes() const {
    return size_t{kRequests} * static_cast<size_t>(shape_.region_stride) * kPoolRowBytes;
  }

  static std::vector<int32_t> DrawPlans(const std::vector<Table>& tables, Order order) {
    std::vector<int32_t> slots(size_t{kPlans} * kEntries);
    ForEach(kRequests, [&](int64_t request) {
      std::mt19937 random(static_cast<uint32_t>(request));
      std::vector<int32_t> positions(kContext);
      std::iota(positions.begin(), positions.end(), 0);
      for (int64_t plan = 0; plan < kPlans; ++plan) {
        const auto begin = slots.begin() + plan * kEntries + request * kRows;
        for (int32_t i = 0; i < kRows; ++i) {
          std::swap(positions[i], positions[i + random() % (kContext - i)]);
          begin[i] = tables[request][positions[i] / kPoolBlockSize] * kPoolBlockSize +
                     positions[i] % kPoolBlockSize;
        }
        if (order == Order::kBySlot) std::sort(begin, begin + kRows);
      }
    });
    return slots;
  }

  cudaError_t Enqueue(int32_t plan) {
    const LayerView layer = {
        rows_, hot_.data(), {.value_bytes = kPoolRowBytes, .row_stride = kPoolRowBytes}};
    ReplayPlanParams params;
    params.shape = shape_;
    params.num_rows = kRequests;
    params.plan = {slots_.data() + int64_t{plan} * kEntries, hot_rows_.data(), counts_.data()};
    params.layers = &layer;
    params.layer_count = 1;
    return cuda::ReplayPlan(params, stream_);
  }

  // Milliseconds of all plans, the best replay.
  double Time() {
    GraphTimer timer(stream_, kPlans, [this](int32_t plan) { return Enqueue(plan); });
    timer.Microseconds();  // warms up
    double best = timer.Microseconds();
    for (int32_t repeat = 1; repeat < kRepeats; ++repeat) {
      best = std::min(best, timer.Microseconds());
    }
    return best / 1e3;
  }

  int64_t CountWrongRows(const int32_t* slots) const {
    const std::vector<uint8_t> hot = hot_.Read(hot_.count(), stream_);
    int64_t wrong = 0;
    for (int64_t request = 0; request < kRequests; ++request) {
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t slot = slots[request * kRows + i];
        uint64_t expected[kPoolRowBytes / 8];
        for (int64_t w = 0; w < kPoolRowBytes / 8; ++w) expected[w] = WordOf(slot, w);
        const size_t at = static_cast<size_t>(request * shape_.region_stride + i) * kPoolRowBytes;
        wrong += std::memcmp(&hot[at], expected, kPoolRowBytes) != 0;
      }
    }
    return wrong;
  }

  uint8_t* const rows_;
  const GroupShape shape_;
  cudaStream_t stream_ = nullptr;
  DeviceArray<uint8_t> hot_{int64_t{kRequests} * RegionStride(kRows, 1) * kPoolRowBytes};
  DeviceArray<int32_t> slots_{int64_t{kPlans} * kEntries};
  DeviceArray<int32_t> hot_rows_{kEntries};
  DeviceArray<int32_t> counts_{kRequests};
};

struct Placement {
  std::string name;
  int32_t neighbourhood_blocks = 1;
  int32_t at_once = 0;  // blocks of each request
};

// Blocks anywhere: the worst that a ledger could do.
std::vector<Table> RandomTables(int32_t block_count) {
  std::vector<int32_t> blocks(block_count);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
  std::vector<Table> tables;
  for (int64_t r = 0; r < kRequests; ++r) {
    tables.emplace_back(blocks.begin() + r * kBlocks, blocks.begin() + (r + 1) * kBlocks);
  }
  return tables;
}

std::vector<Table> TablesOf(const Placement& placement, int32_t block_count) {
  std::vector<int32_t> generations(block_count);
  BlockLedger ledger("kv", block_count, placement.neighbourhood_blocks, generations.data());
  // A tenth, or what is placed and a little more.
  const double needed = 1.1 * kRequests * kBlocks / block_count;
  Churn(&ledger, {.free_share = std::max(0.1, needed)});
  return Place(&ledger, kFirstHolder, kRequests, kBlocks, placement.at_once);
}

int64_t Report(const std::string& name, const std::vector<Table>& tables, Gather* gather) {
  int64_t wrong = 0;
  gather->FillRows(tables);
  const Spread spread = SpreadOf(tables, kPoolBlockBytes);
  const double random = gather->GigabytesPerSecond(tables, Order::kRandom, &wrong);
  const double sorted = gather->GigabytesPerSecond(tables, Order::kBySlot, &wrong);
  std::printf("| %s | %.1f | %.0f | %.1f | %.1f | %.1f | %lld |\n", name.c_str(), spread.pieces,
              100 * spread.large_share, spread.huge_pages, random, sorted,
              static_cast<long long>(wrong));
  std::printf(
      "{\"benchmark\":\"pool_gather\",\"placement\":\"%s\",\"pieces\":%.2f,\"large_share\":%.4f,"
      "\"huge_pages\":%.2f,\"gb_s\":%.2f,\"by_slot_gb_s\":%.2f,\"wrong_rows\":%lld}\n",
      name.c_str(), spread.pieces, spread.large_share, spread.huge_pages, random, sorted,
      static_cast<long long>(wrong));
  std::fflush(stdout);
  return wrong;
}

}  // namespace

std::unique_ptr<HostPool> ReadyPool(DeviceBackend* backend, int64_t bytes, int32_t touch_threads) {
  auto pool = HostPool::Create({.size_bytes = bytes, .touch_threads = touch_threads}, backend);
  absl::Status status = pool.status();
  if (status.ok()) {
    (*pool)->Start(nullptr);
    status = (*pool)->WaitReady(absl::InfiniteFuture());
  }
  if (status.ok()) return *std::move(pool);
  std::printf("a pool of %lld bytes: %s\n", static_cast<long long>(bytes),
              status.ToString().c_str());
  std::exit(1);
}

int64_t MeasureGather(DeviceBackend* backend, int64_t pool_bytes, int32_t touch_threads) {
  const std::unique_ptr<HostPool> pool = ReadyPool(backend, pool_bytes, touch_threads);
  const PoolPart part = *pool->Carve(pool_bytes);
  const auto block_count = static_cast<int32_t>(pool_bytes / kPoolBlockBytes);
  std::printf("\npool of %.0f GiB, %.0f %% in 2 MiB pages; %d requests x %d rows, %d each a plan\n",
              static_cast<double>(pool_bytes) / (1 << 30),
              100 * static_cast<double>(pool->stats().huge_bytes) /
                  static_cast<double>(pool->stats().total_bytes),
              kRequests, kContext, kRows);
  std::printf(
      "| placement | pieces | rows in pieces >= 2 MiB %% | 2 MiB pages | GB/s | by slot GB/s | "
      "wrong rows |\n|---|---|---|---|---|---|---|\n");
  Gather gather(part.data(), block_count);
  int64_t wrong = Report("random blocks", RandomTables(block_count), &gather);
  for (const Placement& placement :
       {Placement{"runs, in turn", 1, 0}, Placement{"runs, half at once", 1, kBlocks / 2},
        Placement{"runs, at once", 1, kBlocks}, Placement{"2 MiB, in turn", 50, 0},
        Placement{"2 MiB, half at once", 50, kBlocks / 2}, Placement{"2 MiB, at once", 50, kBlocks},
        Placement{"4 MiB, in turn", 100, 0}, Placement{"8 MiB, in turn", 200, 0}}) {
    wrong += Report(placement.name, TablesOf(placement, block_count), &gather);
  }
  return wrong;
}

}  // namespace kvtier::testing
