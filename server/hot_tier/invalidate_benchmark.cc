// Two ways never to serve a recycled block's old rows, on the CPU.
//
// Scan: an assignment looks at every owner of every region and drops those on its blocks.
// Compare: every hot slot remembers the generation of its block when it was copied, and every hit
// compares it with the block's present one; an assignment then costs one store.
//
// What to compare: the first costs per assignment (and layer group, and session), the second per
// step (and layer group), whether anything was assigned or not. A decode batch of R requests
// assigns about R / block_size blocks a step. Times are of warm caches, the best case of both;
// run it with -c opt and alone on the machine.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/executor.h"
#include "kernels/params.h"

namespace kvtier {
namespace {

constexpr int32_t kHotSize = 4096;
constexpr int32_t kTopK = 2048;
constexpr int32_t kBlockSize = 64;
constexpr int32_t kBlocks = 32768 * 64 / kBlockSize;  // 64 requests of 32,768 rows

// Regions whose hot slots own rows from all over the pool, but for blocks 0..63.
struct Regions {
  explicit Regions(int32_t region_count)
      : owner(int64_t{region_count} * kHotSize),
        lru(owner.size()),
        hot_generation(owner.size(), 1),
        block_generation(kBlocks, 1) {
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> slot(64 * kBlockSize, kBlocks * kBlockSize - 1);
    for (int32_t& each : owner) each = slot(random);
    shape.hot_size = kHotSize;
    shape.top_k = kTopK;
    shape.region_count = region_count;
    shape.region_stride = RegionStride(kHotSize, 1);
    shape.block_size = kBlockSize;
    shape.slot_count = kBlocks * kBlockSize;
    shape.max_blocks = kBlocks;
  }
  GroupShape shape;
  std::vector<int32_t> owner;
  std::vector<int16_t> lru;
  std::vector<int32_t> hot_generation;    // of the block when the row was copied
  std::vector<int32_t> block_generation;  // now
};

void BM_ScanPerAssignment(benchmark::State& state) {
  Regions regions(static_cast<int32_t>(state.range(0)));
  // Spread over the pool, so that few owners are passed over by the range test alone.
  std::vector<int32_t> blocks(state.range(1));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i % 64);
  blocks.back() = kBlocks - 1;
  cpu::Executor executor(1);
  StatsBlock stats;
  for (auto _ : state) {
    cpu::Invalidate({.shape = regions.shape,
                     .state = {regions.owner.data(), regions.lru.data()},
                     .blocks = blocks.data(),
                     .block_count = static_cast<int32_t>(blocks.size()),
                     .stats = &stats},
                    executor);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(regions.owner.size() * sizeof(int32_t)));
}
BENCHMARK(BM_ScanPerAssignment)
    ->ArgNames({"regions", "blocks"})
    ->ArgsProduct({{1, 8, 64}, {1, 64}})
    ->Unit(benchmark::kMicrosecond);

// The part of a step that would be added: 90 % of top_k are hits.
void BM_ComparePerStep(benchmark::State& state) {
  Regions regions(static_cast<int32_t>(state.range(0)));
  const int32_t hits = kTopK * 9 / 10;
  std::vector<int32_t> hit_slots(kHotSize);
  std::iota(hit_slots.begin(), hit_slots.end(), 0);
  std::shuffle(hit_slots.begin(), hit_slots.end(), std::mt19937(2));
  for (auto _ : state) {
    int64_t stale = 0;
    for (int32_t region = 0; region < regions.shape.region_count; ++region) {
      const int64_t first = int64_t{region} * kHotSize;
      for (int32_t i = 0; i < hits; ++i) {
        const int64_t slot = first + hit_slots[i];
        const int32_t block = regions.owner[slot] / regions.shape.block_size;
        stale += regions.hot_generation[slot] != regions.block_generation[block];
      }
    }
    benchmark::DoNotOptimize(stale);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * state.range(0) * hits);
}
BENCHMARK(BM_ComparePerStep)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(8)
    ->Arg(64)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvtier
