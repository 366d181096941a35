#include "tests/gpu/pinned_pool.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/gpu/cuda_arena.h"

namespace kvtier::testing {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPiece = int64_t{1} << 30;
constexpr int64_t kTouchPiece = int64_t{64} << 20;

[[noreturn]] void Fail(const std::string& kind, const std::string& why) {
  std::fprintf(stderr, "no pool of kind %s: %s\n", kind.c_str(), why.c_str());
  std::exit(1);
}

int64_t RoundUp(int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

PinnedPool::PinnedPool(const std::string& kind, int64_t bytes)
    : kind_(kind), bytes_(RoundUp(bytes)) {
  const auto begin = std::chrono::steady_clock::now();
  if (kind == "memfd" || kind == "hugetlb") {
    TakeDaemonMemory(kind == "hugetlb" ? HugePages::kRequire : HugePages::kAuto);
    Register(kPiece);
  } else if (kind == "anonymous") {
    TakeAnonymousMemory();
    Register(bytes_);
  } else if (kind == "cuda") {
    void* memory = nullptr;
    RequireCuda(cudaHostAlloc(&memory, static_cast<size_t>(bytes_), cudaHostAllocMapped),
                "cudaHostAlloc");
    data_ = static_cast<uint8_t*>(memory);
  } else {
    Fail(kind, "there are memfd, hugetlb, anonymous and cuda");
  }
  seconds_to_pin_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

PinnedPool::~PinnedPool() {
  for (int64_t i = 0; i < registered_pieces_; ++i) {
    (void)cudaHostUnregister(data_ + i * piece_bytes_);
  }
  if (kind_ == "cuda") (void)cudaFreeHost(data_);
  if (kind_ == "anonymous") (void)munmap(data_, static_cast<size_t>(bytes_));
}

void PinnedPool::TakeDaemonMemory(HugePages huge_pages) {
  auto memory = PoolMemory::Create(bytes_, huge_pages, /*numa_node=*/-1);
  if (!memory.ok()) Fail(kind_, memory.status().ToString());
  memory_ = *std::move(memory);
  data_ = memory_.data();
  ForEach((bytes_ + kTouchPiece - 1) / kTouchPiece, [this](int64_t i) {
    const int64_t offset = i * kTouchPiece;
    const absl::Status status = memory_.TakePages(offset, std::min(kTouchPiece, bytes_ - offset));
    if (!status.ok()) Fail(kind_, status.ToString());
  });
}

void PinnedPool::TakeAnonymousMemory() {
  void* const memory = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Fail(kind_, "mmap");
  (void)madvise(memory, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(memory);
  ForEach(bytes_ / kHugePage, [this](int64_t i) {
    for (int64_t at = 0; at < kHugePage; at += 4096) data_[i * kHugePage + at] = 0;
  });
}

void PinnedPool::Register(int64_t piece_bytes) {
  piece_bytes_ = piece_bytes;
  for (int64_t offset = 0; offset < bytes_; offset += piece_bytes) {
    RequireCuda(cudaHostRegister(data_ + offset,
                                 static_cast<size_t>(std::min(piece_bytes, bytes_ - offset)),
                                 cudaHostRegisterPortable | cudaHostRegisterMapped),
                "cudaHostRegister");
    ++registered_pieces_;
  }
}

}  // namespace kvtier::testing
