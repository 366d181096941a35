// How long backups take beside a kernel that scatters as many rows over the pool.
//
//   backup_benchmark [--rows=1,4,16,64,256] [--repeats=7] [--pool=KIND] [--json=FILE]
//                    [--commit=TEXT]
//
// decode: the newest rows of so many requests, 61 layers in one launch (cuda::Backup), with all
// that a daemon's caches have: regions of 4,096 hot slots in which the slot is looked for,
// generations in pinned host memory; random slots of a pool of 65,536 a layer. prefill: 65,536 rows
// of a tensor, of one layer and, as 1,024 tokens, of 61; random blocks of 64 slots. Rows of 656
// bytes; "scatter" writes to the same slots, on random layers. 48 launches in one
// CUDA graph, each with other slots, divided by 48. Afterwards every host row of the last launch is
// compared with its source, and its generation with that of its block.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/region_index.h"
#include "kernels/testing/random_steps.h"
#include "tests/benchmark/report.h"
#include "tests/gpu/ceilings.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_benchmark.h"
#include "tests/gpu/graph_timer.h"
#include "tests/gpu/pinned_pool.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kLayers = 61, kRowBytes = 656, kBlockSize = 64;
constexpr int32_t kSlots = 65536, kRequests = 256, kHotSize = 4096, kLaunches = 48;
constexpr int32_t kPrefillRows = 65536;
constexpr int32_t kGeneration = 5;
constexpr int64_t kLayerBytes = int64_t{kSlots} * kRowBytes;

GroupShape Shape() {
  GroupShape shape;
  shape.top_k = 2048;
  shape.hot_size = kHotSize;
  shape.region_count = kRequests;
  shape.region_stride = RegionStride(kHotSize, 1);
  shape.block_size = kBlockSize;
  shape.slot_count = kSlots;
  shape.max_blocks = kSlots / kBlockSize;
  return shape;
}

class BackupBenchmark {
 public:
  BackupBenchmark(const GpuBenchmarkOptions& options, const PinnedPool& pool,
                  const PinnedPool& generations, cudaStream_t stream)
      : options_(options),
        pool_(pool),
        block_generation_(reinterpret_cast<int32_t*>(generations.data())),
        backed_generation_(block_generation_ + kSlots / kBlockSize),
        stream_(stream) {
    std::fill_n(block_generation_, kSlots / kBlockSize, kGeneration);
    // Something different in every row of what is copied from.
    std::vector<uint64_t> words(static_cast<size_t>(kPrefillRows) * kRowBytes / 8);
    std::iota(words.begin(), words.end(), 0x0101010101010101u);
    tensor_.Write(words, stream_);
    stats_.Clear(stream_);
    std::vector<int16_t> lru(static_cast<size_t>(lru_.count()));
    for (size_t i = 0; i < lru.size(); ++i) lru[i] = static_cast<int16_t>(i % kHotSize);
    lru_.Write(lru, stream_);
    owner_.Write(std::vector<int32_t>(lru.size(), kNone), stream_);
    index_.Clear(stream_);
    score_.Clear(stream_);
    kept_.Write(std::vector<int32_t>(kRequests, kNone), stream_);
    std::vector<int32_t> rows(kPrefillRows);
    std::iota(rows.begin(), rows.end(), 0);
    rows_.Write(rows, stream_);
    FillNewestRows();
  }

  int64_t Run(const std::vector<int32_t>& row_counts) {
    WriteMachine(options_, MeasureCeilings(pool_, RandomSlots(1 << 20, kLayers * kSlots, 1),
                                           kRowBytes, stream_));
    std::printf(
        "| backup | rows a layer | layers | scatter us | us | p99 us | GB/s | x scatter | "
        "wrong |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    int64_t wrong = 0;
    for (const int32_t rows : row_counts) wrong += Measure("decode", rows, kLayers);
    keeps_ = true;  // the newest rows stay on the device, too
    for (const int32_t rows : row_counts) wrong += Measure("decode, kept", rows, kLayers);
    keeps_ = false;
    wrong += Measure("prefill", kPrefillRows, 1);
    wrong += Measure("prefill", 1024, kLayers);
    WriteText(options_.json, JsonList(results_));
    return wrong;
  }

 private:
  // The newest row of request r in layer l is row l * kRequests + r of the tensor.
  void FillNewestRows() {
    const size_t pitch = static_cast<size_t>(Shape().region_stride) * kRowBytes;
    for (int64_t l = 0; l < kLayers; ++l) {
      RequireCuda(cudaMemcpy2DAsync(HotOf(l) + int64_t{kHotSize} * kRowBytes, pitch,
                                    TensorOf(l * kRequests), kRowBytes, kRowBytes, kRequests,
                                    cudaMemcpyDeviceToDevice, stream_),
                  "newest rows");
    }
    RequireCuda(cudaStreamSynchronize(stream_), "newest rows");
  }
  uint8_t* HotOf(int64_t layer) const { return hot_.data() + hot_.count() / kLayers * layer; }
  const uint8_t* TensorOf(int64_t row) const {
    return reinterpret_cast<const uint8_t*>(tensor_.data()) + row * kRowBytes;
  }

  // Runs of `run` slots, distinct up to `end` slots, then again.
  static std::vector<int32_t> RandomSlots(int64_t count, int32_t end, int32_t run) {
    std::vector<int32_t> order(end / run);
    std::iota(order.begin(), order.end(), 0);
    Random random(3);
    for (int32_t i = end / run; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    std::vector<int32_t> slots(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) slots[i] = order[i % end / run] * run + i % run;
    return slots;
  }

  // What the source row of `row` in `layer` is called in the tensor.
  static int64_t SourceRow(bool is_decode, int32_t rows, int64_t layer, int64_t row) {
    return is_decode ? layer * kRequests + row : layer * rows + row;
  }

  cudaError_t Backup(bool is_decode, int32_t rows, int32_t layer_count, const int32_t* slots) {
    std::vector<LayerView> layers;
    std::vector<const uint8_t*> sources;
    const RowLayout layout = {.value_bytes = kRowBytes, .row_stride = kRowBytes};
    for (int64_t l = 0; l < layer_count; ++l) {
      layers.push_back({pool_.data() + l * kLayerBytes, HotOf(l), layout});
      sources.push_back(TensorOf(SourceRow(is_decode, rows, l, 0)));
    }
    const std::vector<RowLayout> layouts(sources.size(), layout);
    BackupParams p;
    p.shape = Shape();
    p.state = {.owner = owner_.data(), .lru = lru_.data(), .index = index_.data()};
    if (keeps_) {
      p.shape.policy = EvictionPolicy::kAged;
      p.state.score = score_.data();
      p.state.kept = kept_.data();
    }
    p.tracking = {block_generation_, backed_generation_};
    p.num_rows = rows;
    p.slots = slots;
    p.layers = layers.data();
    p.layer_count = layer_count;
    p.stats = stats_.data();
    if (is_decode) {
      p.row_to_request = rows_.data();
    } else {
      p.source_rows = rows_.data();
      p.sources = sources.data();
      p.source_layouts = layouts.data();
      p.source_row_count = rows;
    }
    return cuda::Backup(p, stream_);
  }

  int64_t Measure(const std::string& kind, int32_t rows, int32_t layer_count) {
    const bool is_decode = kind != "prefill";
    const std::vector<int32_t> slots =
        RandomSlots(int64_t{kLaunches} * rows, kSlots, is_decode ? 1 : kBlockSize);
    const DeviceArray<int32_t> device_slots(std::ssize(slots));
    device_slots.Write(slots, stream_);
    const int32_t all_rows = rows * layer_count;
    const double scatter_us =
        RowCopyMicroseconds(pool_,
                            RandomSlots(int64_t{kLaunches} * all_rows, layer_count * kSlots,
                                        is_decode ? 1 : kBlockSize),
                            all_rows, kRowBytes, RowDirection::kToPool, stream_);
    std::fill_n(backed_generation_, kSlots, 0);
    std::memset(pool_.data(), 0, static_cast<size_t>(kLayerBytes * layer_count));
    GraphTimer timer(stream_, kLaunches, [&](int32_t launch) {
      return Backup(is_decode, rows, layer_count, device_slots.data() + int64_t{launch} * rows);
    });
    std::vector<double> us, each;
    for (int32_t i = 0; i < options_.repeats; ++i) {
      us.push_back(timer.Microseconds() / kLaunches);
      for (const double value : timer.MicrosecondsOfEach()) each.push_back(value);
    }
    const int64_t wrong = CountWrong(is_decode, rows, layer_count, slots);
    Report(kind, rows, layer_count, scatter_us, Percentile(us, 0.5), Percentile(each, 0.99), wrong);
    return wrong;
  }

  // Of the last launch.
  int64_t CountWrong(bool is_decode, int32_t rows, int32_t layer_count,
                     const std::vector<int32_t>& slots) {
    const std::vector<uint64_t> tensor = tensor_.Read(tensor_.count(), stream_);
    const auto* const sources = reinterpret_cast<const uint8_t*>(tensor.data());
    int64_t wrong = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t slot = slots[slots.size() - rows + row];
      wrong += backed_generation_[slot] != kGeneration;
      for (int64_t l = 0; l < layer_count; ++l) {
        const int64_t source = SourceRow(is_decode, rows, l, row);
        wrong += std::memcmp(pool_.data() + l * kLayerBytes + slot * kRowBytes,
                             sources + source * kRowBytes, kRowBytes) != 0;
      }
    }
    return wrong;
  }

  void Report(const std::string& kind, int32_t rows, int32_t layer_count, double scatter_us,
              double us, double p99_us, int64_t wrong) {
    const double gb_per_s = static_cast<double>(rows) * layer_count * kRowBytes / us / 1e3;
    std::printf("| %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.2f | %lld |\n", kind.c_str(), rows,
                layer_count, scatter_us, us, p99_us, gb_per_s, us / scatter_us,
                static_cast<long long>(wrong));
    std::fflush(stdout);
    results_.push_back(JsonObject()
                           .Add("backup", kind)
                           .Add("rows", rows)
                           .Add("layers", layer_count)
                           .Add("us_floor", scatter_us)
                           .Add("us_median", us)
                           .Add("us_p99", p99_us)
                           .Add("gb_per_s", gb_per_s)
                           .Add("wrong", wrong)
                           .Add("commit", options_.commit)
                           .ToString());
  }

  const GpuBenchmarkOptions options_;
  const PinnedPool& pool_;
  int32_t* const block_generation_;   // [kSlots / kBlockSize]
  int32_t* const backed_generation_;  // [kSlots]
  const cudaStream_t stream_;
  DeviceArray<uint8_t> hot_{int64_t{kLayers} * kRequests * RegionStride(kHotSize, 1) * kRowBytes};
  DeviceArray<uint64_t> tensor_{int64_t{kPrefillRows} * kRowBytes / 8};
  DeviceArray<int32_t> owner_{int64_t{kRequests} * kHotSize};
  DeviceArray<int16_t> lru_{int64_t{kRequests} * kHotSize};
  DeviceArray<uint16_t> index_{int64_t{kRequests} * RegionIndexLength(kHotSize)};
  DeviceArray<uint8_t> score_{int64_t{kRequests} * kHotSize};
  DeviceArray<int32_t> kept_{kRequests};
  DeviceArray<int32_t> rows_{kPrefillRows};
  DeviceArray<StatsBlock> stats_{1};
  std::vector<std::string> results_;
  bool keeps_ = false;
};

int Main(BenchmarkFlags flags) {
  const GpuBenchmarkOptions options(&flags);
  const std::vector<int32_t> rows = flags.Numbers("rows", {1, 4, 16, 64, 256});
  flags.RequireNoOthers();
  if (std::ranges::min(rows) < 1 || std::ranges::max(rows) > kRequests) {
    std::fprintf(stderr, "--rows: 1 to %d\n", kRequests);
    return 2;
  }
  return RunGpuBenchmark([&](cudaStream_t stream) {
    const PinnedPool pool(options.pool, kLayers * kLayerBytes);
    const PinnedPool generations(options.pool, 2 * int64_t{kSlots} * 4);
    return BackupBenchmark(options, pool, generations, stream).Run(rows);
  });
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  return kvtier::testing::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
