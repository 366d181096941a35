// What the followers of a layer group cost: a swap-in of one call for all layers, a leader whose
// plan is replayed behind it, and one whose plan is replayed on a second stream meanwhile.
//
//   group_benchmark [--layers=4] [--miss=10] [--batch=1,8,32] [--repeats=7] [--pool=KIND]
//                   [--json=FILE] [--commit=TEXT]
//
// swap_in_workload.h says what is timed and checked, with the rows of each layer in a part of the
// pool of its own. floor: a kernel that gathers as many random rows as all layers together copy.
// A group should cost no more than its bytes: "over" is the time above the floor.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/benchmark/report.h"
#include "tests/gpu/ceilings.h"
#include "tests/gpu/gpu_benchmark.h"
#include "tests/gpu/pinned_pool.h"
#include "tests/gpu/swap_in_workload.h"

namespace kvtier::testing {
namespace {

using Kernel = SwapInWorkload::Kernel;

int Main(BenchmarkFlags flags) {
  const GpuBenchmarkOptions options(&flags);
  const int32_t layers = flags.Number("layers", 4), percent = flags.Number("miss", 10);
  const std::vector<int32_t> batches = flags.Numbers("batch", {1, 8, 32});
  flags.RequireNoOthers();
  return RunGpuBenchmark([&](cudaStream_t stream) {
    const WorkloadSizes sizes = {.batch_max = std::ranges::max(batches), .layers = layers};
    const PinnedPool pool(
        options.pool, int64_t{sizes.batch_max} * sizes.context * sizes.row_bytes * sizes.layers);
    SwapInWorkload workload(sizes, pool, stream);
    WriteMachine(options, MeasureCeilings(pool, workload.RandomSlots(sizes.batch_max, 1 << 20),
                                          sizes.row_bytes, stream));
    workload.Load((sizes.top_k * percent + 50) / 100);
    std::printf("%d layers, %d %% misses; us a step\n", layers, percent);
    std::printf(
        "| batch | rows of all layers | floor us | one call us | replay behind us | replay "
        "beside us | beside over floor us | wrong |\n");
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    int64_t all_wrong = 0;
    std::vector<std::string> results;
    for (const int32_t batch : batches) {
      const double rows = workload.RowsPerStep(batch) * layers;
      const double floor_us = RowCopyMicroseconds(pool, workload.RandomSlots(batch, 1 << 20),
                                                  static_cast<int32_t>(std::lround(rows)),
                                                  sizes.row_bytes, RowDirection::kToDevice, stream);
      const std::vector<Timing> t = workload.Time(
          batch, {Kernel::kOurs, Kernel::kReplay, Kernel::kReplayBeside}, options.repeats);
      const int64_t wrong = t[0].wrong + t[1].wrong + t[2].wrong;
      all_wrong += wrong;
      std::printf("| %d | %.0f | %.1f | %.1f | %.1f | %.1f | %.1f | %lld |\n", batch, rows,
                  floor_us, t[0].us, t[1].us, t[2].us, t[2].us - floor_us,
                  static_cast<long long>(wrong));
      std::fflush(stdout);
      results.push_back(JsonObject()
                            .Add("layers", layers)
                            .Add("miss_percent", percent)
                            .Add("batch", batch)
                            .Add("rows", rows)
                            .Add("us_floor", floor_us)
                            .Add("us_one_call", t[0].us)
                            .Add("us_replay_behind", t[1].us)
                            .Add("us_replay_beside", t[2].us)
                            .Add("wrong", wrong)
                            .Add("commit", options.commit)
                            .ToString());
    }
    WriteText(options.json, JsonList(results));
    return all_wrong;
  });
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  return kvtier::testing::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
