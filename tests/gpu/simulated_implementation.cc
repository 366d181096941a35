#include "tests/gpu/simulated_implementation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/workspace.h"
#include "kernels/testing/byte_buffer.h"

namespace kvtier::testing {
namespace {

[[noreturn]] void Fail(const char* call, const char* complaint) {
  std::fprintf(stderr, "%s: %s\n", call, complaint);
  std::abort();
}

// The workspace of one device stream, as a caller keeps it.
class Workspace {
 public:
  // At least what `shape` and `num_rows` need; only the header holds what calls left there.
  void* Reserve(const GroupShape& shape, int32_t num_rows) {
    const int64_t bytes = cuda::WorkspaceBytes(shape, num_rows);
    if (memory_ == nullptr || memory_->size() < bytes) {
      // A multiple of 256 bytes at a 256-byte boundary, as allocators of device memory have it.
      memory_ = std::make_unique<ByteBuffer>(bytes + kAlignment, /*sparse=*/false);
      std::memset(data(), 0, cuda::kHeaderBytes);
    }
    uint8_t* const end = memory_->data() + memory_->size();
    std::memset(data() + bytes, kCanary, end - data() - bytes);
    std::memset(data() + cuda::kHeaderBytes, kScratch, bytes - cuda::kHeaderBytes);
    reserved_bytes_ = bytes;
    return data();
  }

  void Check(const char* call) {
    if (!std::all_of(data(), data() + cuda::kHeaderBytes, [](uint8_t b) { return b == 0; })) {
      Fail(call, "left a workspace header that isn't zero");
    }
    uint8_t* const end = memory_->data() + memory_->size();
    if (!std::all_of(data() + reserved_bytes_, end, [](uint8_t b) { return b == kCanary; })) {
      Fail(call, "wrote past the workspace");
    }
  }

 private:
  static constexpr int64_t kAlignment = 256;
  static constexpr uint8_t kScratch = 0x5A;

  uint8_t* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_->data());
    return memory_->data() + (kAlignment - address % kAlignment) % kAlignment;
  }

  std::unique_ptr<ByteBuffer> memory_;
  int64_t reserved_bytes_ = 0;
};

void RequireSuccess(cudaError_t error, const char* call) {
  if (error != cudaSuccess) Fail(call, "refused");
}

}  // namespace

Implementation SimulatedCuda(const simt::Gpu& gpu, int32_t threads) {
  const auto workspace = std::make_shared<Workspace>();
  const auto next_gpu = std::make_shared<simt::Gpu>(gpu);
  // Another order of threads in every call.
  const auto start = [next_gpu] {
    ++next_gpu->seed;
    simt::SetGpu(*next_gpu);
  };
  const std::string name = "Simulated" + std::to_string(threads);
  return {
      name + (gpu.shared_bytes_max < 128 * 1024 ? "Small" : "") +
          (gpu.has_clusters ? "Clusters" : ""),
      [=](const SwapInParams& p) {
        start();
        void* const memory = workspace->Reserve(p.shape, p.num_rows);
        // By turns: as the device likes, and one kernel that copies by itself, in each size.
        constexpr int32_t kClusters[] = {0, 1, 0, 2, 0, 4, 0, 8};
        const int32_t cluster = gpu.has_clusters ? kClusters[next_gpu->seed % std::size(kClusters)]
                                                 : static_cast<int32_t>(next_gpu->seed % 2);
        RequireSuccess(cuda::SwapIn(p, memory, nullptr, {.threads = threads, .cluster = cluster}),
                       "SwapIn");
        workspace->Check("SwapIn");
      },
      [=](const ReplayPlanParams& p) {
        start();
        RequireSuccess(cuda::ReplayPlan(p, nullptr), "ReplayPlan");
      },
      [=](const BackupParams& p) {
        start();
        // By turns: few rows are spread over blocks where the GPU is large.
        simt::Gpu sized = *next_gpu;
        if (sized.seed % 2 == 0) sized.multiprocessors = 64;
        simt::SetGpu(sized);
        RequireSuccess(cuda::Backup(p, nullptr), "Backup");
      },
      [=](const InvalidateParams& p) {
        start();
        void* const memory = workspace->Reserve(p.shape, 1);
        RequireSuccess(cuda::Invalidate(p, memory, nullptr), "Invalidate");
        workspace->Check("Invalidate");
      },
      [=](const ResetRegionParams& p) {
        start();
        if (p.region >= 0 && p.region < p.shape.region_count) {
          RequireSuccess(cuda::ResetRegion(p, nullptr), "ResetRegion");
        }
      },
  };
}

}  // namespace kvtier::testing
