#include "tests/gpu/pool_start.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/cuda_arena.h"
#include "tests/gpu/pool_gather.h"

extern char** environ;

namespace kvtier::testing {
namespace {

constexpr int32_t kRepeats = 3;
constexpr int64_t kChunkBytes = int64_t{1} << 30;

class Stopwatch {
 public:
  // Seconds since the last lap, or the beginning.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void ReportPin(const std::string& how, int64_t bytes, double pin, double free, double huge_share) {
  std::printf("| %s | %.3f | %.3f | %.0f |\n", how.c_str(), pin, free, 100 * huge_share);
  std::printf(
      "{\"benchmark\":\"pool_pin\",\"how\":\"%s\",\"bytes\":%lld,\"pin_s\":%.4f,"
      "\"free_s\":%.4f,\"huge_share\":%.3f}\n",
      how.c_str(), static_cast<long long>(bytes), pin, free, huge_share);
  std::fflush(stdout);
}

// Each chunk on one of the threads.
void OnChunks(int64_t bytes, int32_t threads,
              const std::function<void(int64_t begin, int64_t bytes)>& function) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> all;
  for (int32_t t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      RequireCuda(cudaSetDevice(0), "cudaSetDevice");
      for (int64_t begin = next.fetch_add(kChunkBytes); begin < bytes;
           begin = next.fetch_add(kChunkBytes)) {
        function(begin, std::min(kChunkBytes, bytes - begin));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

}  // namespace

void MeasurePin(DeviceBackend* backend, int64_t bytes, int32_t threads) {
  std::printf(
      "\npinning %.0f GiB\n| how | pin s | free s | in 2 MiB pages %% |\n|---|---|---|---|\n",
      static_cast<double>(bytes) / (1 << 30));
  for (int32_t repeat = 0; repeat < kRepeats; ++repeat) {
    Stopwatch watch;
    void* memory = nullptr;
    RequireCuda(cudaHostAlloc(&memory, static_cast<size_t>(bytes),
                              cudaHostAllocPortable | cudaHostAllocMapped),
                "cudaHostAlloc");
    const double alloc = watch.Lap();
    RequireCuda(cudaFreeHost(memory), "cudaFreeHost");
    ReportPin("cudaHostAlloc", bytes, alloc, watch.Lap(), 0);
    for (const int32_t touch_threads : {4, threads}) {
      watch.Lap();
      std::unique_ptr<HostPool> pool = ReadyPool(backend, bytes, touch_threads);
      const double pin = watch.Lap();
      const double huge_share = static_cast<double>(pool->stats().huge_bytes) /
                                static_cast<double>(pool->stats().total_bytes);
      watch.Lap();
      pool.reset();
      ReportPin("host pool, " + std::to_string(touch_threads) + " threads", bytes, pin, watch.Lap(),
                huge_share);
    }
  }
}

void MeasureAttach(DeviceBackend* backend, int64_t bytes, int32_t touch_threads) {
  const std::unique_ptr<HostPool> pool = ReadyPool(backend, bytes, touch_threads);
  // Without close-on-exec.
  const int fd = fcntl(pool->fd().get(), F_DUPFD, 0);
  std::printf(
      "\na second process attaches %.0f GiB\n| threads | map s | register s | unregister s |\n"
      "|---|---|---|---|\n",
      static_cast<double>(bytes) / (1 << 30));
  std::fflush(stdout);
  for (const int32_t threads : {1, 2, 4, 8}) {
    std::string arguments[] = {"pool_benchmark", "--attach", std::to_string(fd),
                               std::to_string(bytes), std::to_string(threads)};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), arguments[4].data(), nullptr};
    pid_t worker = 0;
    int status = 1;
    if (posix_spawn(&worker, "/proc/self/exe", nullptr, nullptr, argv, environ) != 0 ||
        waitpid(worker, &status, 0) != worker || status != 0) {
      std::printf("the worker process failed: %d\n", status);
    }
  }
  close(fd);
}

int AttachAsWorker(int fd, int64_t bytes, int32_t threads) {
  // An engine has its context long before.
  RequireCuda(cudaSetDevice(0), "cudaSetDevice");
  RequireCuda(cudaFree(nullptr), "context");
  Stopwatch watch;
  void* const memory =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 1;
  const double map = watch.Lap();
  auto* const data = static_cast<uint8_t*>(memory);
  OnChunks(bytes, threads, [&](int64_t begin, int64_t chunk_bytes) {
    RequireCuda(cudaHostRegister(data + begin, static_cast<size_t>(chunk_bytes),
                                 cudaHostRegisterPortable | cudaHostRegisterMapped),
                "cudaHostRegister");
  });
  const double registered = watch.Lap();
  OnChunks(bytes, threads, [&](int64_t begin, int64_t) {
    RequireCuda(cudaHostUnregister(data + begin), "cudaHostUnregister");
  });
  const double unregistered = watch.Lap();
  munmap(memory, static_cast<size_t>(bytes));
  std::printf("| %d | %.4f | %.3f | %.3f |\n", threads, map, registered, unregistered);
  std::printf(
      "{\"benchmark\":\"pool_attach\",\"bytes\":%lld,\"threads\":%d,\"map_s\":%.5f,"
      "\"register_s\":%.4f,\"unregister_s\":%.4f}\n",
      static_cast<long long>(bytes), threads, map, registered, unregistered);
  return 0;
}

}  // namespace kvtier::testing
