// How long a swap-in takes on this GPU: microseconds in a CUDA graph, one table.
//
//   swap_in_smoke_benchmark [COPYING_BLOCKS]
//
// Trace: miss_trace.h; top_k 2048, hot_size 4096, contexts of 32,768 rows of 656 bytes in random
// blocks of 64. 16 steps of warm-up, then 48 steps in one graph, launched once; the best of three
// such runs from an empty buffer. Afterwards every hot row is compared with the host row of its
// owner. "resolve" is the same without layers: nothing is copied.
// Ceiling: rows over PCIe at the speed of the copy engine, about 55 GB/s on a Gen5 x16 link.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/stats_block.h"
#include "tests/gpu/cuda_arena.h"
#include "tests/gpu/cuda_implementation.h"
#include "tests/gpu/miss_trace.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kTopK = 2048;
constexpr int32_t kHotSize = 4096;
constexpr int32_t kContext = 32768;
constexpr int32_t kBlockSize = 64;
constexpr int32_t kBlocks = kContext / kBlockSize;
constexpr int32_t kRowBytes = 656;
constexpr int32_t kWarmUp = 16;
constexpr int32_t kMeasured = 48;
constexpr int32_t kSteps = kWarmUp + kMeasured;
constexpr int32_t kBatchMax = 128;
constexpr int32_t kRepeats = 3;
constexpr size_t kPoolBytes = size_t{kBatchMax} * kContext * kRowBytes;

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    void* memory = nullptr;
    RequireCuda(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(memory);
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  void Write(const std::vector<T>& values, cudaStream_t stream) const {
    RequireCuda(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T),
                                cudaMemcpyHostToDevice, stream),
                "upload");
    RequireCuda(cudaStreamSynchronize(stream), "upload");
  }
  std::vector<T> Read(cudaStream_t stream) const {
    std::vector<T> values(static_cast<size_t>(count_));
    RequireCuda(cudaMemcpyAsync(values.data(), data_, values.size() * sizeof(T),
                                cudaMemcpyDeviceToHost, stream),
                "download");
    RequireCuda(cudaStreamSynchronize(stream), "download");
    return values;
  }

 private:
  const int64_t count_;
  T* data_;
};

GroupShape Shape() {
  GroupShape shape;
  shape.top_k = kTopK;
  shape.hot_size = kHotSize;
  shape.region_count = kBatchMax;
  shape.region_stride = RegionStride(kHotSize, 1);
  shape.block_size = kBlockSize;
  shape.slot_count = kBatchMax * kContext;
  shape.max_blocks = kBlocks;
  return shape;
}

struct Result {
  float swap_in_us;
  float resolve_us;
  int64_t misses_per_step;  // of all requests
  int64_t wrong_rows;
};

// Calls function(i) for i in [0, count) on all processors.
template <typename Function>
void ForEach(int64_t count, const Function& function) {
  std::vector<std::thread> threads;
  const int64_t thread_count = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&function, t, count, thread_count] {
      for (int64_t i = t; i < count; i += thread_count) function(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Benchmark {
 public:
  explicit Benchmark(int32_t copying_blocks)
      : copying_blocks_(copying_blocks), block_table_(kBatchMax * kBlocks) {
    RequireCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    MakePool();
    std::iota(block_table_.begin(), block_table_.end(), 0);
    Random random(7);
    for (size_t i = block_table_.size(); i > 1; --i) {
      std::swap(block_table_[i - 1], block_table_[random.Below(static_cast<int32_t>(i))]);
    }
    blocks_.Write(block_table_, stream_);
    std::vector<int32_t> rows(kBatchMax);
    std::iota(rows.begin(), rows.end(), 0);
    rows_.Write(rows, stream_);
    const int64_t workspace_bytes = cuda::WorkspaceBytes(Shape(), kBatchMax);
    RequireCuda(cudaMalloc(&workspace_, static_cast<size_t>(workspace_bytes)), "cudaMalloc");
    RequireCuda(cudaMemsetAsync(workspace_, 0, static_cast<size_t>(workspace_bytes), stream_),
                "memset");
  }
  ~Benchmark() {
    (void)cudaFree(workspace_);
    (void)cudaHostUnregister(host_);
    (void)munmap(host_, kPoolBytes);
    (void)cudaStreamDestroy(stream_);
  }

  Result Run(int32_t batch, int32_t misses) {
    DrawTrace(batch, misses);
    Result result = {};
    result.resolve_us = BestOf(batch, /*copies=*/false);
    result.swap_in_us = BestOf(batch, /*copies=*/true);
    const std::vector<StatsBlock> stats = stats_.Read(stream_);
    Counts counts;
    ReadCounts(stats.data(), &counts);
    // The first step misses everything.
    result.misses_per_step = (counts[Counter::kMisses] - int64_t{batch} * kTopK) / (kSteps - 1);
    result.wrong_rows = CountWrongRows(batch);
    return result;
  }

 private:
  // Pages of 2 MiB, as a daemon's pool has: with smaller ones the GPU translates addresses instead
  // of moving rows.
  void MakePool() {
    void* const memory = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    (void)madvise(memory, kPoolBytes, MADV_HUGEPAGE);
    host_ = static_cast<uint8_t*>(memory);
    ForEach(Shape().slot_count, [this](int64_t slot) {
      auto* const words = reinterpret_cast<uint64_t*>(host_ + slot * kRowBytes);
      for (int64_t w = 0; w < kRowBytes / 8; ++w) {
        words[w] = static_cast<uint64_t>(slot << 8 | w) * 0x9e3779b97f4a7c15u;
      }
    });
    RequireCuda(cudaHostRegister(host_, kPoolBytes, cudaHostRegisterMapped), "cudaHostRegister");
  }

  void DrawTrace(int32_t batch, int32_t misses) {
    std::vector<int32_t> topk(static_cast<size_t>(kSteps) * batch * kTopK);
    ForEach(batch, [&topk, batch, misses](int64_t request) {
      MissTrace trace(1000 + static_cast<uint64_t>(request), kTopK, kHotSize, kContext, misses);
      for (int64_t step = 0; step < kSteps; ++step) {
        const std::vector<int32_t>& positions = trace.Next();
        std::copy(positions.begin(), positions.end(),
                  topk.begin() + (step * batch + request) * kTopK);
      }
    });
    topk_.Write(topk, stream_);
  }

  float BestOf(int32_t batch, bool copies) {
    float best = 1e30f;
    for (int32_t repeat = 0; repeat < kRepeats; ++repeat) {
      StartEmpty();
      for (int32_t step = 0; step < kWarmUp; ++step) Step(batch, step, copies);
      best = std::min(best, TimeGraph(batch, copies));
    }
    return best;
  }

  void StartEmpty() {
    std::vector<int16_t> lru(static_cast<size_t>(kBatchMax) * kHotSize);
    for (size_t i = 0; i < lru.size(); ++i) lru[i] = static_cast<int16_t>(i % kHotSize);
    lru_.Write(lru, stream_);
    owner_.Write(std::vector<int32_t>(lru.size(), kNone), stream_);
    stats_.Write({StatsBlock()}, stream_);
  }

  void Step(int32_t batch, int32_t step, bool copies) {
    const LayerView layer = {
        host_, hot_.data(), {.value_bytes = kRowBytes, .row_stride = kRowBytes}};
    SwapInParams p;
    p.shape = Shape();
    p.state = {owner_.data(), lru_.data()};
    p.num_rows = batch;
    p.row_to_request = rows_.data();
    p.topk = topk_.data() + int64_t{step} * batch * kTopK;
    p.block_table = blocks_.data();
    p.hot_indices = hot_indices_.data();
    p.layers = &layer;
    p.layer_count = copies ? 1 : 0;
    p.stats = stats_.data();
    RequireCuda(cuda::SwapIn(p, workspace_, stream_, {.copying_blocks = copying_blocks_}),
                "SwapIn");
  }

  float TimeGraph(int32_t batch, bool copies) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    RequireCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    for (int32_t step = kWarmUp; step < kSteps; ++step) Step(batch, step, copies);
    RequireCuda(cudaStreamEndCapture(stream_, &graph), "capture");
    RequireCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    RequireCuda(cudaGraphUpload(executable, stream_), "cudaGraphUpload");
    cudaEvent_t begin = nullptr, end = nullptr;
    RequireCuda(cudaEventCreate(&begin), "cudaEventCreate");
    RequireCuda(cudaEventCreate(&end), "cudaEventCreate");
    RequireCuda(cudaStreamSynchronize(stream_), "warm-up");
    RequireCuda(cudaEventRecord(begin, stream_), "cudaEventRecord");
    RequireCuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    RequireCuda(cudaEventRecord(end, stream_), "cudaEventRecord");
    RequireCuda(cudaStreamSynchronize(stream_), "graph");
    float milliseconds = 0;
    RequireCuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    RequireCuda(cudaEventDestroy(begin), "cudaEventDestroy");
    RequireCuda(cudaEventDestroy(end), "cudaEventDestroy");
    RequireCuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    RequireCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return milliseconds * 1000 / kMeasured;
  }

  // Hot rows that differ from the host rows of their owners, and requests without enough owners.
  int64_t CountWrongRows(int32_t batch) {
    const std::vector<uint8_t> hot = hot_.Read(stream_);
    const std::vector<int32_t> owners = owner_.Read(stream_);
    int64_t wrong = 0;
    for (int32_t request = 0; request < batch; ++request) {
      int32_t owned = 0;
      for (int32_t h = 0; h < kHotSize; ++h) {
        const int64_t slot = owners[request * kHotSize + h];
        if (slot < 0) continue;
        ++owned;
        const int64_t row = int64_t{request} * Shape().region_stride + h;
        wrong += std::memcmp(&hot[row * kRowBytes], host_ + slot * kRowBytes, kRowBytes) != 0;
      }
      wrong += owned < kTopK;
    }
    return wrong;
  }

  const int32_t copying_blocks_;
  cudaStream_t stream_ = nullptr;
  uint8_t* host_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<int32_t> block_table_;
  DeviceArray<uint8_t> hot_{int64_t{kBatchMax} * RegionStride(kHotSize, 1) * kRowBytes};
  DeviceArray<int32_t> owner_{int64_t{kBatchMax} * kHotSize};
  DeviceArray<int16_t> lru_{int64_t{kBatchMax} * kHotSize};
  DeviceArray<int32_t> blocks_{int64_t{kBatchMax} * kBlocks};
  DeviceArray<int32_t> rows_{kBatchMax};
  DeviceArray<int32_t> topk_{int64_t{kSteps} * kBatchMax * kTopK};
  DeviceArray<int32_t> hot_indices_{int64_t{kBatchMax} * kTopK};
  DeviceArray<StatsBlock> stats_{1};
};

int Main(int32_t copying_blocks) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 0;
  }
  Benchmark benchmark(copying_blocks);
  int64_t wrong = 0;
  std::printf("top_k %d, hot_size %d, %d B rows; us a step in a CUDA graph\n", kTopK, kHotSize,
              kRowBytes);
  std::printf("| miss %% | batch | misses/step | swap-in us | resolve us | GB/s | wrong rows |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const int32_t percent : {0, 10, 20}) {
    for (const int32_t batch : {1, 8, 32, 128}) {
      const int32_t misses = (kTopK * percent + 50) / 100;
      const Result r = benchmark.Run(batch, misses);
      const double bytes = static_cast<double>(r.misses_per_step) * kRowBytes;
      std::printf("| %d | %d | %lld | %.1f | %.1f | %.1f | %lld |\n", percent, batch,
                  static_cast<long long>(r.misses_per_step), r.swap_in_us, r.resolve_us,
                  bytes / r.swap_in_us / 1e3, static_cast<long long>(r.wrong_rows));
      wrong += r.wrong_rows;
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) { return kvtier::testing::Main(argc > 1 ? std::atoi(argv[1]) : 0); }
