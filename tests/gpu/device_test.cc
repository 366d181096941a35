// What only a GPU can show: capture, pending errors, and other processors at the same time.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/counters.h"
#include "kernels/cuda/launch.h"
#include "kernels/stats_block.h"
#include "kernels/testing/group_fixture.h"
#include "kernels/testing/random_steps.h"
#include "tests/gpu/cuda_arena.h"
#include "tests/gpu/cuda_implementation.h"
#include "tests/gpu/parity.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kRegions = 4;
constexpr int32_t kTopK = 64;

GroupOptions Options() {
  GroupOptions options;
  options.shape = {.top_k = kTopK,
                   .hot_size = 160,
                   .region_count = kRegions,
                   .block_size = 16,
                   .slot_count = 2048,
                   .max_blocks = 8};
  options.layouts = {Contiguous(656)};
  options.num_rows = kRegions;
  return options;
}

class Stream {
 public:
  Stream() {
    RequireCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Wait() const { RequireCuda(cudaStreamSynchronize(stream_), "kernels"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A group that stays on the GPU, with a device stream and a workspace of its own, and the top-k of
// many steps.
class DeviceGroup {
 public:
  DeviceGroup(uint64_t seed, int32_t steps, StatsBlock* stats)
      : fixture_(Options()), stats_(stats) {
    RandomSteps random(seed, &fixture_);
    const size_t positions = fixture_.topk.size();
    std::vector<int32_t> topk;
    while (topk.size() < positions * static_cast<size_t>(steps)) {
      const Round round = random.Next();
      topk.insert(topk.end(), round.topk.begin(), round.topk.end());
    }
    do {
      device_.Begin();
      pinned_.Begin();
      params_ = fixture_.SwapIn();
      params_.state = {device_.Mirror(fixture_.owner.data(), std::ssize(fixture_.owner), true),
                       device_.Mirror(fixture_.lru.data(), std::ssize(fixture_.lru), true)};
      params_.num_real_rows = nullptr;
      params_.row_to_request = device_.Mirror(params_.row_to_request, kRegions, false);
      params_.newest_slot = nullptr;
      params_.hot_indices =
          device_.Mirror(params_.hot_indices, static_cast<int64_t>(positions), true);
      params_.miss_mask = nullptr;
      params_.valid_counts = nullptr;
      params_.plan = {};
      topk_ = device_.Mirror(topk.data(), std::ssize(topk), false);
      layer_ = fixture_.SwapIn().layers[0];
      layer_.host = pinned_.Mirror(layer_.host, fixture_.host[0].size(), true);
      layer_.hot = device_.Mirror(layer_.hot, fixture_.hot[0].size(), true);
    } while (MustBeginAgain({&device_, &pinned_}));
    params_.layers = &layer_;
    params_.stats = stats_;
    const int64_t bytes = cuda::WorkspaceBytes(fixture_.shape(), kRegions);
    RequireCuda(cudaMalloc(&workspace_, static_cast<size_t>(bytes)), "cudaMalloc");
    RequireCuda(cudaMemsetAsync(workspace_, 0, static_cast<size_t>(bytes), stream()), "memset");
    device_.Upload();
    pinned_.Upload();
    stream_.Wait();
    // The arrays of this function end with it; the contents are on the GPU.
    topk_of_all_ = std::move(topk);
  }
  ~DeviceGroup() { (void)cudaFree(workspace_); }

  void Step(int32_t step) {
    SwapInParams p = params_;
    p.topk = topk_ + int64_t{step} * kRegions * kTopK;
    RequireCuda(cuda::SwapIn(p, workspace_, stream()), "SwapIn");
  }
  void Invalidate(const std::vector<int32_t>& blocks, void* workspace, cudaStream_t stream) {
    InvalidateParams p = fixture_.Invalidate(blocks);
    p.state = params_.state;
    p.stats = stats_;
    RequireCuda(cuda::Invalidate(p, workspace, stream), "Invalidate");
  }
  // What is on the GPU, in the fixture.
  GroupFixture& Download() {
    device_.Download();
    return fixture_;
  }
  cudaStream_t stream() const { return stream_.get(); }
  void Wait() const { stream_.Wait(); }
  bool IsIdle() const {
    if (cudaStreamQuery(stream()) == cudaSuccess) return true;
    (void)cudaGetLastError();  // "not ready" counts as an error
    return false;
  }

 private:
  GroupFixture fixture_;
  StatsBlock* const stats_;
  Stream stream_;
  CudaArena device_{/*on_device=*/true, stream_.get()};
  CudaArena pinned_{/*on_device=*/false, stream_.get()};
  SwapInParams params_;
  LayerView layer_;
  const int32_t* topk_ = nullptr;
  std::vector<int32_t> topk_of_all_;
  void* workspace_ = nullptr;
};

// Statistics in device memory, read as a CPU can: by copies in the order of a device stream.
class DeviceStats {
 public:
  DeviceStats() {
    void* memory = nullptr;
    RequireCuda(cudaMalloc(&memory, sizeof(StatsBlock)), "cudaMalloc");
    block_ = static_cast<StatsBlock*>(memory);
    RequireCuda(cudaMemsetAsync(block_, 0, sizeof(StatsBlock), stream_.get()), "memset");
    stream_.Wait();
    RequireCuda(cudaHostAlloc(&memory, sizeof(StatsBlock), cudaHostAllocDefault), "cudaHostAlloc");
    copy_ = new (memory) StatsBlock();
  }
  ~DeviceStats() {
    (void)cudaFreeHost(copy_);
    (void)cudaFree(block_);
  }
  DeviceStats(const DeviceStats&) = delete;
  DeviceStats& operator=(const DeviceStats&) = delete;

  StatsBlock* get() const { return block_; }

  // False if a kernel was adding to them meanwhile.
  bool Read(Counts* counts) {
    RequireCuda(
        cudaMemcpyAsync(copy_, block_, sizeof(StatsBlock), cudaMemcpyDeviceToHost, stream_.get()),
        "copy");
    stream_.Wait();
    std::copy_n(copy_->counts, kCounterCount, counts->values);
    return Imbalance(*copy_) == 0;
  }

 private:
  Stream stream_;
  StatsBlock* block_;
  StatsBlock* copy_;
};

// Stands first: the very first launch of the process is a captured one.
TEST(CaptureTest, KernelsNeedNoLaunchBeforeTheyAreCaptured) {
  const ParityCase c = {"first", Options(), 3, 128};
  EXPECT_EQ(PlayParity(c, 1, 3, Reference(), Cuda({.name = "CudaGraph", .graph = true})), "");
}

TEST(ErrorTest, APendingErrorIsNeitherReturnedNorCleared) {
  DeviceGroup group(1, 1, nullptr);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, size_t{1} << 50), cudaErrorMemoryAllocation);
  group.Step(0);  // fails the test's process if it is refused
  group.Wait();
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(ErrorTest, ARefusedCallLeavesNoErrorPending) {
  GroupFixture fixture(Options());
  EXPECT_EQ(cuda::SwapIn(fixture.SwapIn(), nullptr, nullptr, {.threads = 900}),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// A processor that reads while kernels write sees whole calls.
TEST(StatsTest, AReaderSeesOneMoment) {
  constexpr int32_t kSteps = 2000;
  DeviceStats stats;
  DeviceGroup group(2, kSteps, stats.get());
  for (int32_t step = 0; step < kSteps; ++step) group.Step(step);
  int64_t reads = 0, moments = 0, last = 0;
  for (bool was_idle = false; !was_idle;) {
    was_idle = group.IsIdle();
    Counts counts;
    if (!stats.Read(&counts)) continue;
    ++reads;
    const int64_t positions = counts[Counter::kHits] + counts[Counter::kMisses] +
                              counts[Counter::kInvalid] + counts[Counter::kDuplicates];
    ASSERT_EQ(positions, counts[Counter::kSteps] * kRegions * kTopK);
    ASSERT_EQ(counts[Counter::kBytesCopied], counts[Counter::kRowsCopied] * 656);
    ASSERT_GE(counts[Counter::kSteps], last);
    moments += counts[Counter::kSteps] > last;
    last = counts[Counter::kSteps];
  }
  EXPECT_EQ(last, kSteps);
  RecordProperty("reads", static_cast<int>(reads));
  std::printf("%lld consistent reads, %lld different moments of %d steps\n",
              static_cast<long long>(reads), static_cast<long long>(moments), kSteps);
}

// No count is lost between two device streams.
TEST(StatsTest, TwoDeviceStreamsAddToOneBlock) {
  constexpr int32_t kSteps = 1000;
  DeviceStats stats;
  DeviceGroup a(3, kSteps, stats.get()), b(4, kSteps, stats.get());
  for (int32_t step = 0; step < kSteps; ++step) {
    a.Step(step);
    b.Step(step);
  }
  a.Wait();
  b.Wait();
  Counts counts;
  ASSERT_TRUE(stats.Read(&counts));
  EXPECT_EQ(counts[Counter::kSteps], 2 * kSteps);
  EXPECT_EQ(counts[Counter::kHits] + counts[Counter::kMisses] + counts[Counter::kInvalid] +
                counts[Counter::kDuplicates],
            2 * int64_t{kSteps} * kRegions * kTopK);
}

// Another process invalidates while a step runs: the state stays one that every step can use.
TEST(InvalidateTest, BesideSteps) {
  constexpr int32_t kSteps = 2000;
  DeviceStats stats;
  DeviceGroup group(5, kSteps, stats.get());
  Stream other;
  void* workspace = nullptr;
  RequireCuda(cudaMalloc(&workspace, 1 << 20), "cudaMalloc");
  RequireCuda(cudaMemsetAsync(workspace, 0, 1 << 20, other.get()), "memset");
  Random random(6);
  for (int32_t step = 0; step < kSteps; ++step) {
    group.Step(step);
    group.Invalidate({random.Below(128), random.Below(128), random.Below(128)}, workspace,
                     other.get());
  }
  other.Wait();
  group.Wait();
  const GroupFixture& after = group.Download();
  for (int32_t region = 0; region < kRegions; ++region) {
    std::vector<int32_t> order = after.Lru(region);
    std::sort(order.begin(), order.end());
    std::set<int32_t> owned;
    const std::vector<int32_t> owners = after.Owners(region);
    for (int32_t h = 0; h < after.shape().hot_size; ++h) {
      ASSERT_EQ(order[h], h);
      if (owners[h] < 0) continue;
      EXPECT_TRUE(owned.insert(owners[h]).second) << owners[h] << " is owned twice";
      EXPECT_EQ(after.HotRow(0, after.shape().region_stride * region + h),
                after.HostRow(0, owners[h]));
    }
  }
  Counts counts;
  ASSERT_TRUE(stats.Read(&counts));
  EXPECT_GT(counts[Counter::kInvalidatedCopies], 0);
  EXPECT_EQ(counts[Counter::kStateRepairs], 0);
  RequireCuda(cudaFree(workspace), "cudaFree");
}

}  // namespace
}  // namespace kvtier::testing
