// How far a step on the CPU is from copying the same rows with memcpy.
//
// Trace: every request begins with top_k distinct positions of 32,768 and keeps a share 1 - m of
// them from step to step; the others are positions that are not in its hot buffer, in random
// order. 64 steps are prepared before the clock runs, 16 warm up, 48 are measured, again and again
// from the same start. Rows are 656 bytes, 2,048 are asked for, 4,096 are hot.
//
// Counters (medians over steps): misses (a request and step), ns_step (a call), ns_resolve (a call
// without layers: everything but the bytes), ns_memcpy (std::memcpy of the same rows, in the same
// order and between the same places), x_memcpy = ns_step / ns_memcpy: 1 would be a step that costs
// nothing but its bytes. At 0 % there is nothing to copy and no ratio.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "benchmark/benchmark.h"
#include "kernels/testing/implementation.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kTopK = 2048, kHotSize = 4096, kBlockSize = 64, kRowBytes = 656;
constexpr int32_t kPositions = 32768, kBlocks = kPositions / kBlockSize;
constexpr int32_t kWarmUpSteps = 16, kMeasuredSteps = 48, kSteps = kWarmUpSteps + kMeasuredSteps;

GroupOptions Options(int32_t batch, EvictionPolicy policy) {
  GroupOptions options;
  options.shape = {.top_k = kTopK,
                   .hot_size = kHotSize,
                   .region_count = batch,
                   .block_size = kBlockSize,
                   .slot_count = batch * kPositions,
                   .max_blocks = kBlocks,
                   .policy = policy};
  options.layouts = {Contiguous(kRowBytes)};
  options.num_rows = batch;
  options.positions = true;
  options.sparse = true;  // 21 MB a request; touched below
  return options;
}

void Shuffle(Random* random, std::vector<int32_t>* v) {
  for (size_t i = v->size() - 1; i > 0; --i) {
    std::swap((*v)[i], (*v)[random->Below(static_cast<int32_t>(i) + 1)]);
  }
}

// A group, and the top-k of all its rows for each step.
class Workload {
 public:
  Workload(int32_t batch, int32_t miss_percent, EvictionPolicy policy)
      : group(Options(batch, policy)), topk(kSteps) {
    group.block_table.resize(batch * kBlocks);
    std::iota(group.block_table.begin(), group.block_table.end(), 0);
    Shuffle(&random_, &group.block_table);
    std::memset(group.host[0].data(), 1, group.host[0].size());
    std::memset(group.hot[0].data(), 2, group.hot[0].size());
    const Implementation implementation = Cpu(1);
    std::vector<std::vector<int32_t>> rows(batch);
    for (std::vector<int32_t>& step : topk) {
      for (int32_t r = 0; r < batch; ++r) {
        NextRow(r, miss_percent, &rows[r]);
        step.insert(step.end(), rows[r].begin(), rows[r].end());
      }
      group.topk = step;
      implementation.swap_in(group.SwapIn());  // what is hot decides what can miss
    }
  }

  GroupFixture group;
  std::vector<std::vector<int32_t>> topk;  // [step]

 private:
  void NextRow(int32_t r, int32_t miss_percent, std::vector<int32_t>* row) {
    if (row->empty()) {
      row->resize(kPositions);
      std::iota(row->begin(), row->end(), 0);
      Shuffle(&random_, row);
      row->resize(kTopK);
      return;
    }
    const std::vector<int32_t> owners = group.Owners(r);
    std::unordered_set<int32_t> taken(owners.begin(), owners.end());
    Shuffle(&random_, row);
    const int32_t fresh = (kTopK * miss_percent + 50) / 100;
    for (int32_t i = 0; i < fresh; ++i) {
      int32_t position;
      do position = random_.Below(kPositions);
      while (!taken.insert(SlotOf(r, position)).second);
      (*row)[i] = position;
    }
    Shuffle(&random_, row);
  }

  int32_t SlotOf(int32_t r, int32_t position) const {
    return ResolveSlot(group.block_table.data() + r * kBlocks, kBlocks, kBlockSize, kNone,
                       position);
  }

  Random random_{7};
};

using Clock = std::chrono::steady_clock;

double Nanoseconds(Clock::duration d) {
  return std::chrono::duration<double, std::nano>(d).count();
}

using Copies = std::vector<std::pair<int32_t, int32_t>>;  // host slot, hot row
using Times = std::vector<double>;                        // nanoseconds of each measured step

// All steps from empty regions. `copies` [kMeasuredSteps] gets their plans.
void RunSteps(const Implementation& implementation, bool copy, Workload* w, Times* times,
              std::vector<Copies>* copies) {
  GroupFixture& group = w->group;
  for (int32_t region = 0; region < group.shape().region_count; ++region) {
    implementation.reset_region(group.ResetRegion(region));
  }
  for (int32_t step = 0; step < kSteps; ++step) {
    group.topk = w->topk[step];
    SwapInParams params = group.SwapIn();
    if (!copy) params.layer_count = 0;
    const auto begin = Clock::now();
    implementation.swap_in(params);
    const auto end = Clock::now();
    if (step < kWarmUpSteps) continue;
    times->push_back(Nanoseconds(end - begin));
    if (copies == nullptr) continue;
    Copies& of_step = copies->emplace_back();
    for (int32_t r = 0; r < group.num_rows(); ++r) {
      for (int32_t i = 0; i < group.plan_counts[r]; ++i) {
        of_step.emplace_back(group.plan_slots[r * kTopK + i], group.plan_hot_rows[r * kTopK + i]);
      }
    }
  }
}

void RunMemcpy(const std::vector<Copies>& copies, Workload* w, Times* times) {
  const RowLayout& layout = w->group.layouts()[0];
  for (const Copies& step : copies) {
    const auto begin = Clock::now();
    for (const auto& [slot, hot_row] : step) {
      std::memcpy(w->group.hot[0].data() + ValueOffset(layout, hot_row),
                  w->group.host[0].data() + ValueOffset(layout, slot), kRowBytes);
    }
    benchmark::ClobberMemory();
    times->push_back(Nanoseconds(Clock::now() - begin));
  }
}

// Of single steps, and no mean: the machine may be busy with other things.
double Median(Times times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Arguments: threads (0: the reference), batch, misses in percent, policy (0: LRU, 1: aged).
void BM_SwapIn(benchmark::State& state) {
  const auto threads = static_cast<int32_t>(state.range(0));
  const auto batch = static_cast<int32_t>(state.range(1));
  Workload workload(batch, static_cast<int32_t>(state.range(2)),
                    static_cast<EvictionPolicy>(state.range(3)));
  const Implementation implementation = threads == 0 ? Reference() : Cpu(threads);
  std::vector<Copies> copies;
  Times warm_up, step, resolve, copy;
  RunSteps(implementation, true, &workload, &warm_up, &copies);
  for (auto _ : state) {
    const size_t before = step.size();
    RunSteps(implementation, true, &workload, &step, nullptr);
    state.SetIterationTime(std::accumulate(step.begin() + before, step.end(), 0.0) * 1e-9);
    RunSteps(implementation, false, &workload, &resolve, nullptr);
    RunMemcpy(copies, &workload, &copy);
  }
  state.counters["misses"] = static_cast<double>(copies.back().size()) / batch;
  state.counters["ns_step"] = Median(step);
  state.counters["ns_resolve"] = Median(resolve);
  state.counters["ns_memcpy"] = Median(copy);
  if (!copies.back().empty()) state.counters["x_memcpy"] = Median(step) / Median(copy);
}

BENCHMARK(BM_SwapIn)
    ->ArgNames({"threads", "batch", "miss_percent", "policy"})
    ->ArgsProduct({{0, 1, 2}, {1, 8}, {0, 5, 10, 20}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvtier::testing
