// How the cost of a swap-in grows: each size is varied alone around one point.
//
//   scale_benchmark [--axis=batch,top_k,hot_size,context,pool_gib] [--repeats=3] [--pool=KIND]
//                   [--pool_gib_max=64] [--json=FILE] [--commit=TEXT]
//
// The point: 32 requests, top_k 2048, hot_size 4096, contexts of 32,768 rows of 656 bytes in blocks
// drawn at random from 2 GiB of the pool (two requests may have a block in common), 10 % misses.
// swap_in_workload.h says what is timed and checked; floor is a kernel that gathers as many random
// rows of the same contexts and does nothing else.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
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

constexpr int32_t kPercent = 10;
constexpr int64_t kGib = int64_t{1} << 30;

struct Point {
  int32_t batch = 32, top_k = 2048, hot_size = 4096, context = 32768, pool_gib = 2;
};

struct Axis {
  std::string name;
  int32_t Point::*size;
  std::vector<int32_t> values;
};

std::vector<Axis> Axes() {
  return {
      {"batch", &Point::batch, {1, 2, 4, 8, 16, 32, 64, 128, 256}},
      {"top_k", &Point::top_k, {512, 1024, 2048}},
      {"hot_size", &Point::hot_size, {4096, 6144, 8192, 12288, 16384}},
      {"context", &Point::context, {8192, 32768, 131072, 524288, 1048576}},
      {"pool_gib", &Point::pool_gib, {1, 2, 4, 8, 16, 32, 64}},
  };
}

bool IsAmong(const std::string& name, const std::string& names) {
  std::istringstream list(names);
  for (std::string each; std::getline(list, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

// What the machine can pin: a good half of its memory.
int32_t PoolGibMax() {
  const int64_t bytes = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return static_cast<int32_t>(std::clamp<int64_t>(bytes * 6 / 10 / kGib, 1, 64));
}

class Scale {
 public:
  Scale(const GpuBenchmarkOptions& options, const PinnedPool& pool, cudaStream_t stream)
      : options_(options), pool_(pool), stream_(stream) {}

  int64_t Run(const std::string& axes) {
    WriteCeilings();
    std::printf("| axis | value | rows/step | floor us | us | p99 us | GB/s | wrong |\n");
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    int64_t wrong = 0;
    for (const Axis& axis : Axes()) {
      if (!axes.empty() && !IsAmong(axis.name, axes)) continue;
      for (const int32_t value : axis.values) {
        Point point;
        point.*axis.size = value;
        if (point.pool_gib * kGib > pool_.size_bytes()) {
          std::printf("| %s | %d | the pool is too small: not measured |\n", axis.name.c_str(),
                      value);
          continue;
        }
        wrong += Measure(axis.name, value, point);
      }
    }
    WriteText(options_.json, JsonList(results_));
    return wrong;
  }

 private:
  static WorkloadSizes SizesOf(const Point& point) {
    return {.top_k = point.top_k,
            .hot_size = point.hot_size,
            .context = point.context,
            .batch_max = point.batch,
            .pool_bytes = point.pool_gib * kGib,
            .blocks_may_be_shared = true};
  }

  void WriteCeilings() {
    const WorkloadSizes sizes = SizesOf(Point());
    const SwapInWorkload workload(sizes, pool_, stream_);
    WriteMachine(options_, MeasureCeilings(pool_, workload.RandomSlots(sizes.batch_max, 1 << 20),
                                           sizes.row_bytes, stream_));
  }

  int64_t Measure(const std::string& axis, int32_t value, const Point& point) {
    const WorkloadSizes sizes = SizesOf(point);
    SwapInWorkload workload(sizes, pool_, stream_);
    workload.Load((sizes.top_k * kPercent + 50) / 100);
    const double rows = workload.RowsPerStep(point.batch);
    const double floor_us = RowCopyMicroseconds(pool_, workload.RandomSlots(point.batch, 1 << 20),
                                                static_cast<int32_t>(std::lround(rows)),
                                                sizes.row_bytes, RowDirection::kToDevice, stream_);
    const Timing t = workload.Time(point.batch, {Kernel::kOurs}, options_.repeats)[0];
    const double gb_per_s = rows * sizes.row_bytes / t.us / 1e3;
    std::printf("| %s | %d | %.0f | %.1f | %.2f | %.1f | %.1f | %lld |\n", axis.c_str(), value,
                rows, floor_us, t.us, t.us_p99, gb_per_s, static_cast<long long>(t.wrong));
    std::fflush(stdout);
    results_.push_back(JsonObject()
                           .Add("axis", axis)
                           .Add("value", value)
                           .Add("batch", point.batch)
                           .Add("top_k", point.top_k)
                           .Add("hot_size", point.hot_size)
                           .Add("context", point.context)
                           .Add("pool_gib", point.pool_gib)
                           .Add("miss_percent", kPercent)
                           .Add("rows_per_step", rows)
                           .Add("us_floor", floor_us)
                           .Add("us_median", t.us)
                           .Add("us_p99", t.us_p99)
                           .Add("gb_per_s", gb_per_s)
                           .Add("wrong", t.wrong)
                           .Add("commit", options_.commit)
                           .ToString());
    return t.wrong;
  }

  const GpuBenchmarkOptions options_;
  const PinnedPool& pool_;
  const cudaStream_t stream_;
  std::vector<std::string> results_;
};

int Main(BenchmarkFlags flags) {
  GpuBenchmarkOptions options(&flags);
  options.repeats = flags.Number("repeats", 3);
  const std::string axes = flags.Text("axis", "");
  const int32_t pool_gib_max = flags.Number("pool_gib_max", PoolGibMax());
  flags.RequireNoOthers();
  return RunGpuBenchmark([&](cudaStream_t stream) {
    const bool needs_all = axes.empty() || IsAmong("pool_gib", axes);
    const PinnedPool pool(options.pool, (needs_all ? std::max(pool_gib_max, 2) : 2) * kGib);
    return Scale(options, pool, stream).Run(axes);
  });
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  return kvtier::testing::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
