// What requests with a common prefix cost, without and with a directory of rows (share_rows).
//
//   shared_prefix_benchmark [--batch=64] [--miss=10] [--layers=1] [--steps=256] [--repeats=5]
//                           [--pool=KIND] [--json=FILE] [--commit=TEXT]
//
// swap_in_workload.h says what is timed and checked: contexts of 32,768 rows of 656 bytes, of which
// the first 29,504, 90 % of what a step asks for, lie in blocks that all requests have in their
// tables; each request asks for rows of its own choice. Host bytes are what the statistics count as
// read from the host pool, the rest of the rows is copied inside the hot buffer. With more than one
// layer the leader's plan is replayed on the others as well. Every hot row is checked, and the
// outputs, owners and orders of both are those of the reference.
#include <algorithm>
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

constexpr int32_t kCommonRows = 29504;

struct Line {
  const char* name;
  Kernel kernel, without;  // what it is compared with
};

std::vector<Line> LinesFor(int32_t layers) {
  std::vector<Line> lines = {{"one call", Kernel::kOurs, Kernel::kOurs},
                             {"one call, shared", Kernel::kSharing, Kernel::kOurs}};
  if (layers > 1) {
    lines.push_back({"replayed", Kernel::kReplay, Kernel::kReplay});
    lines.push_back({"replayed, shared", Kernel::kReplaySharing, Kernel::kReplay});
  }
  return lines;
}

int Main(BenchmarkFlags flags) {
  const GpuBenchmarkOptions options(&flags);
  WorkloadSizes sizes;
  sizes.batch_max = flags.Number("batch", 64);
  sizes.layers = flags.Number("layers", 1);
  sizes.measured = flags.Number("steps", 256);
  sizes.common = kCommonRows;
  const int64_t own_rows = int64_t{sizes.batch_max} * (sizes.context - sizes.common);
  sizes.pool_bytes = (sizes.common + own_rows) * sizes.row_bytes * sizes.layers;
  const int32_t percent = flags.Number("miss", 10);
  flags.RequireNoOthers();
  return RunGpuBenchmark([&](cudaStream_t stream) {
    const PinnedPool pool(options.pool, sizes.pool_bytes);
    SwapInWorkload workload(sizes, pool, stream);
    WriteMachine(options, MeasureCeilings(pool, workload.RandomSlots(sizes.batch_max, 1 << 20),
                                          sizes.row_bytes, stream));
    workload.Load((sizes.top_k * percent + 50) / 100);
    const std::vector<Line> lines = LinesFor(sizes.layers);
    std::vector<Kernel> kernels;
    for (const Line& line : lines) kernels.push_back(line.kernel);
    const std::vector<Timing> timings = workload.Time(sizes.batch_max, kernels, options.repeats);
    std::printf("%d requests, %d %% misses, %d layers, %d steps; a step\n", sizes.batch_max,
                percent, sizes.layers, sizes.measured);
    std::printf(
        "| | rows missed | rows shared | host MB | host MB, times fewer | us | p99 us "
        "| wrong |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    int64_t wrong = 0;
    std::vector<std::string> results;
    for (size_t i = 0; i < lines.size(); ++i) {
      const Timing& t = timings[i];
      const auto without = std::ranges::find(kernels, lines[i].without) - kernels.begin();
      const double fewer = timings[without].bytes / std::max(t.bytes, 1.0);
      const double rows = workload.RowsPerStep(sizes.batch_max);
      wrong += t.wrong;
      std::printf("| %s | %.0f | %.0f | %.3f | %.2f | %.1f | %.1f | %lld |\n", lines[i].name, rows,
                  t.shared, t.bytes / 1e6, fewer, t.us, t.us_p99, static_cast<long long>(t.wrong));
      results.push_back(JsonObject()
                            .Add("name", std::string(lines[i].name))
                            .Add("batch", sizes.batch_max)
                            .Add("miss_percent", percent)
                            .Add("layers", sizes.layers)
                            .Add("steps", sizes.measured)
                            .Add("rows_missed", rows)
                            .Add("rows_shared", t.shared)
                            .Add("host_bytes", t.bytes)
                            .Add("times_fewer", fewer)
                            .Add("us_median", t.us)
                            .Add("us_p99", t.us_p99)
                            .Add("wrong", t.wrong)
                            .Add("commit", options.commit)
                            .ToString());
    }
    WriteText(options.json, JsonList(results));
    return wrong;
  });
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  return kvtier::testing::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
