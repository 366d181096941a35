#include "tests/gpu/cuda_arena.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/testing/byte_buffer.h"

namespace kvtier::testing {
namespace {

constexpr int64_t kGuardBytes = 256;
// Arrays of a few gigabytes are mostly untouched: compared in pieces, copied where they changed.
constexpr int64_t kPieceBytes = 1 << 20;

bool IsCanary(const uint8_t* bytes, int64_t count) {
  return std::all_of(bytes, bytes + count, [](uint8_t b) { return b == kCanary; });
}

int64_t AlignUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void RequireCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s (%s)\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}

CudaArena::~CudaArena() {
  (void)cudaFreeHost(staging_);
  if (on_device_) (void)cudaFree(device_);
}

int64_t CudaArena::UsedBytes() const {
  if (arrays_.empty()) return kGuardBytes;
  return arrays_.back().offset + AlignUp(arrays_.back().bytes) + kGuardBytes;
}

const void* CudaArena::Add(const void* host, int64_t bytes, bool writable) {
  if (host == nullptr) return nullptr;
  const int64_t offset = UsedBytes();
  arrays_.push_back({const_cast<void*>(host), offset, bytes, writable});
  return (on_device_ ? device_ : staging_) + offset;
}

bool CudaArena::MustBeginAgain() {
  if (UsedBytes() <= capacity_) return false;
  capacity_ = UsedBytes() + UsedBytes() / 4;
  const auto bytes = static_cast<size_t>(capacity_);
  RequireCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  if (on_device_) RequireCuda(cudaFree(device_), "cudaFree");
  RequireCuda(cudaFreeHost(staging_), "cudaFreeHost");
  void* memory = nullptr;
  RequireCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), "cudaHostAlloc");
  staging_ = static_cast<uint8_t*>(memory);
  if (on_device_) {
    RequireCuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    device_ = static_cast<uint8_t*>(memory);
  }
  Begin();
  return true;
}

bool MustBeginAgain(std::initializer_list<CudaArena*> arenas) {
  bool must = false;
  for (CudaArena* const arena : arenas) {
    if (arena->MustBeginAgain()) must = true;
  }
  return must;
}

void CudaArena::Upload() {
  int64_t end = 0;  // of the array before
  for (const Array& array : arrays_) {
    std::memset(staging_ + end, kCanary, static_cast<size_t>(array.offset - end));
    std::memcpy(staging_ + array.offset, array.host, static_cast<size_t>(array.bytes));
    end = array.offset + array.bytes;
  }
  std::memset(staging_ + end, kCanary, static_cast<size_t>(UsedBytes() - end));
  if (!on_device_) return;
  RequireCuda(cudaMemcpyAsync(device_, staging_, static_cast<size_t>(UsedBytes()),
                              cudaMemcpyHostToDevice, stream_),
              "upload");
}

void CudaArena::Download() {
  if (on_device_) {
    RequireCuda(cudaMemcpyAsync(staging_, device_, static_cast<size_t>(UsedBytes()),
                                cudaMemcpyDeviceToHost, stream_),
                "download");
  }
  RequireCuda(cudaStreamSynchronize(stream_), "kernels or download");
  for (const Array& array : arrays_) {
    Check(array);
    for (int64_t at = 0; at < array.bytes; at += kPieceBytes) {
      auto* const host = static_cast<uint8_t*>(array.host) + at;
      const uint8_t* const mirror = staging_ + array.offset + at;
      const auto bytes = static_cast<size_t>(std::min(kPieceBytes, array.bytes - at));
      if (std::memcmp(host, mirror, bytes) == 0) continue;
      if (!array.writable) {
        std::fprintf(stderr, "a kernel wrote to an input array of %lld bytes\n",
                     static_cast<long long>(array.bytes));
        std::abort();
      }
      std::memcpy(host, mirror, bytes);
    }
  }
}

void CudaArena::Check(const Array& array) const {
  const uint8_t* const begin = staging_ + array.offset;
  const uint8_t* const end = begin + array.bytes;
  if (IsCanary(begin - kGuardBytes, kGuardBytes) && IsCanary(end, kGuardBytes)) return;
  std::fprintf(stderr, "a kernel wrote past an array of %lld bytes\n",
               static_cast<long long>(array.bytes));
  std::abort();
}

}  // namespace kvtier::testing
