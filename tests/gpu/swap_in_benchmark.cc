// How long a swap-in takes on this GPU, beside what it can't beat and what was published before.
//
//   swap_in_benchmark [--miss=0,5,10,15,20] [--batch=1,4,8,16,32,64,128] [--ours-only]
//                     [--repeats=7] [--pool=memfd|hugetlb|anonymous|cuda] [--copying_blocks=0]
//                     [--cluster=0] [--policy=lru|aged] [--json=FILE] [--commit=TEXT]
//
// swap_in_workload.h says what is timed and checked; top_k 2048, hot_size 4096, contexts of 32,768
// rows of 656 bytes. us: a step of a CUDA graph of 48, median of the repeats. p99: of single steps,
// which have an event behind them (the first line says what that costs). floor: a kernel that
// gathers as many random rows and does nothing else. A is design_a.h. With --policy=aged hot slots
// are drawn by score, and the rival is not A but exact LRU, on a trace with as many misses. FILE is
// a list with an object a line of the table; FILE_machine.json has the machine and the ceilings.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/benchmark/report.h"
#include "tests/gpu/ceilings.h"
#include "tests/gpu/gpu_benchmark.h"
#include "tests/gpu/pinned_pool.h"
#include "tests/gpu/swap_in_workload.h"

namespace kvtier::testing {
namespace {

using Kernel = SwapInWorkload::Kernel;

struct Options : GpuBenchmarkOptions {
  using GpuBenchmarkOptions::GpuBenchmarkOptions;
  std::vector<int32_t> miss_percents, batches;
  bool is_aged = false, has_rival = true;
  cuda::LaunchOptions launch;
};

Options Parse(BenchmarkFlags flags) {
  Options o(&flags);
  o.miss_percents = flags.Numbers("miss", {0, 5, 10, 15, 20});
  o.batches = flags.Numbers("batch", {1, 4, 8, 16, 32, 64, 128});
  o.has_rival = !flags.Has("ours-only");
  o.is_aged = flags.Text("policy", "lru") == "aged";
  o.launch = {.copying_blocks = flags.Number("copying_blocks", 0),
              .cluster = flags.Number("cluster", 0)};
  flags.RequireNoOthers();
  return o;
}

class Grid {
 public:
  Grid(const Options& options, const PinnedPool& pool, cudaStream_t stream)
      : options_(options), pool_(pool), stream_(stream), workload_(sizes_, pool, stream) {
    if (!options.is_aged) return;
    WorkloadSizes sizes;
    sizes.policy = EvictionPolicy::kAged;
    aged_ = std::make_unique<SwapInWorkload>(sizes, pool, stream);
  }

  // Rows that came out wrong.
  int64_t Run() {
    const int32_t batch_max = sizes_.batch_max;
    const JsonObject ceilings = MeasureCeilings(pool_, workload_.RandomSlots(batch_max, 1 << 20),
                                                sizes_.row_bytes, stream_);
    WriteMachine(options_, ceilings);
    std::printf(
        "| miss %% | batch | rows/step | floor us | us | p99 us | GB/s | %s us | %s p99 us "
        "| %s / ours | wrong |\n",
        rival_, rival_, rival_);
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    int64_t wrong = 0;
    for (const int32_t percent : options_.miss_percents) {
      const int32_t misses = (sizes_.top_k * percent + 50) / 100;
      workload_.Load(misses);
      if (aged_ != nullptr) aged_->Load(misses);
      for (const int32_t batch : options_.batches) wrong += RunOne(percent, batch);
    }
    WriteText(options_.json, JsonList(results_));
    return wrong;
  }

 private:
  // Ours and, if it is wanted, the rival.
  std::vector<Timing> Time(int32_t batch) {
    const int32_t repeats = options_.repeats;
    if (aged_ == nullptr) {
      std::vector<Kernel> kernels = {Kernel::kOurs};
      if (options_.has_rival) kernels.push_back(Kernel::kDesignA);
      return workload_.Time(batch, kernels, repeats, options_.launch);
    }
    std::vector<Timing> timings = aged_->Time(batch, {Kernel::kOurs}, repeats, options_.launch);
    if (options_.has_rival) {
      timings.push_back(workload_.Time(batch, {Kernel::kOurs}, repeats, options_.launch)[0]);
    }
    return timings;
  }

  int64_t RunOne(int32_t percent, int32_t batch) {
    const double rows = (aged_ != nullptr ? *aged_ : workload_).RowsPerStep(batch);
    const auto whole_rows = static_cast<int32_t>(std::lround(rows));
    const int64_t slots = std::min<int64_t>(int64_t{48} * whole_rows, 1 << 20);
    const double floor_us =
        RowCopyMicroseconds(pool_, workload_.RandomSlots(batch, slots), whole_rows,
                            sizes_.row_bytes, RowDirection::kToDevice, stream_);
    const std::vector<Timing> timings = Time(batch);
    const Timing& ours = timings[0];
    const double gb_per_s = rows * sizes_.row_bytes / ours.us / 1e3;
    JsonObject result;
    result.Add("miss_percent", percent)
        .Add("batch", batch)
        .Add("us_median", ours.us)
        .Add("us_best", ours.us_best)
        .Add("us_each_median", ours.us_each)
        .Add("us_p99", ours.us_p99)
        .Add("rows_per_step", rows)
        .Add("gb_per_s", gb_per_s)
        .Add("us_floor", floor_us);
    int64_t wrong = ours.wrong;
    std::printf("| %d | %d | %.0f | %.1f | %.2f | %.1f | %.1f |", percent, batch, rows, floor_us,
                ours.us, ours.us_p99, gb_per_s);
    if (timings.size() > 1) {
      const Timing& rival = timings[1];
      const std::string name = aged_ != nullptr ? "us_lru" : "us_design_a";
      wrong += rival.wrong;
      result.Add(name, rival.us).Add(name + "_p99", rival.us_p99);
      std::printf(" %.2f | %.1f | %.2f |", rival.us, rival.us_p99, rival.us / ours.us);
    } else {
      std::printf(" - | - | - |");
    }
    std::printf(" %lld |\n", static_cast<long long>(wrong));
    std::fflush(stdout);
    results_.push_back(result.Add("wrong", wrong)
                           .Add("pool", pool_.kind())
                           .Add("commit", options_.commit)
                           .ToString());
    return wrong;
  }

  const Options options_;
  const PinnedPool& pool_;
  const cudaStream_t stream_;
  const WorkloadSizes sizes_;
  const char* const rival_ = options_.is_aged ? "lru" : "A";
  SwapInWorkload workload_;
  std::unique_ptr<SwapInWorkload> aged_;  // --policy=aged
  std::vector<std::string> results_;
};

int Main(const Options& options) {
  const WorkloadSizes sizes;
  if (std::ranges::max(options.batches) > sizes.batch_max ||
      std::ranges::min(options.batches) < 1) {
    std::fprintf(stderr, "--batch: 1 to %d\n", sizes.batch_max);
    return 2;
  }
  return RunGpuBenchmark([&](cudaStream_t stream) {
    const PinnedPool pool(options.pool, int64_t{sizes.batch_max} * sizes.context * sizes.row_bytes);
    return Grid(options, pool, stream).Run();
  });
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  using kvtier::testing::BenchmarkFlags;
  return kvtier::testing::Main(kvtier::testing::Parse(BenchmarkFlags(argc, argv)));
}
