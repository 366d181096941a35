#include "server/host_pool/host_pool.h"

#include <fcntl.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/memory_headroom.h"
#include "server/core/status_macros.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvtier {
namespace {

constexpr int64_t kHugePageBytes = kPoolAlignmentBytes;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kPoolAlignmentBytes - 1) / kPoolAlignmentBytes * kPoolAlignmentBytes;
}

absl::Status HostMemoryError(absl::string_view what, int64_t bytes, int error) {
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   absl::StrCat("host memory: ", what, " of ", bytes, " bytes: ", strerror(error)),
                   {{"requested_bytes", absl::StrCat(bytes)}});
}

// Does the system give 2 MiB pages to shared memory that asks for them?
bool TransparentHugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(file, text);
  for (const char* mode : {"[always]", "[within_size]", "[advise]", "[force]"}) {
    if (text.find(mode) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

PoolPart::PoolPart(PoolPart&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      offset_bytes_(other.offset_bytes_),
      size_bytes_(other.size_bytes_) {}

PoolPart& PoolPart::operator=(PoolPart&& other) noexcept {
  if (this != &other) {
    GiveBack();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    offset_bytes_ = other.offset_bytes_;
    size_bytes_ = other.size_bytes_;
  }
  return *this;
}

PoolPart::~PoolPart() { GiveBack(); }

void PoolPart::GiveBack() {
  if (pool_ != nullptr) pool_->GiveBack(offset_bytes_, size_bytes_);
  pool_ = nullptr;
}

HostPool::HostPool(const HostPoolOptions& options, DeviceBackend* backend)
    : options_(options), backend_(backend) {}

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(const HostPoolOptions& options,
                                                           DeviceBackend* backend) {
  if (options.size_bytes <= 0) {
    return FieldInvalid("pool_bytes", absl::StrCat(options.size_bytes), "at least 1");
  }
  if (options.chunk_bytes <= 0 || options.chunk_bytes % kPoolAlignmentBytes != 0) {
    return FieldInvalid("chunk_bytes", absl::StrCat(options.chunk_bytes), "a multiple of 2 MiB");
  }
  HostPoolOptions rounded = options;
  rounded.size_bytes = RoundUp(options.size_bytes);
  rounded.touch_threads = std::clamp(options.touch_threads, 1, 64);
  if (options.huge_pages != HugePages::kRequire) {
    KVTIER_RETURN_IF_ERROR(
        CheckMemoryHeadroom(ReadMemoryHeadroom(), "the host pool", rounded.size_bytes));
  }
  std::unique_ptr<HostPool> pool(new HostPool(rounded, backend));
  KVTIER_RETURN_IF_ERROR(pool->Map());
  return pool;
}

absl::Status HostPool::Map() {
  const int64_t bytes = options_.size_bytes;
  const bool reserved = options_.huge_pages == HugePages::kRequire;
  const unsigned int flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (reserved ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  fd_ = UniqueFd(memfd_create("kvtier-host-pool", flags));
  if (!fd_.valid()) return HostMemoryError("memfd_create", bytes, errno);
  if (ftruncate(fd_.get(), bytes) != 0) return HostMemoryError("ftruncate", bytes, errno);
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                    fd_.get(), 0);
  if (data == MAP_FAILED) {
    return HostMemoryError(reserved ? "mmap (are so many huge pages reserved?)" : "mmap", bytes,
                           errno);
  }
  data_ = static_cast<uint8_t*>(data);
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return HostMemoryError("F_ADD_SEALS", bytes, errno);
  }
  page_bytes_ = sysconf(_SC_PAGESIZE);
  if (reserved) page_bytes_ = kHugePageBytes;
  if (options_.huge_pages == HugePages::kAuto && TransparentHugePages() &&
      madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE) == 0) {
    page_bytes_ = kHugePageBytes;
  }
  // A core of the daemon must not hold what users wrote, nor fill the disk.
  (void)madvise(data_, static_cast<size_t>(bytes), MADV_DONTDUMP);
  if (options_.numa_node >= 0) {
    const unsigned long mask = 1UL << options_.numa_node;  // NOLINT(google-runtime-int): mbind takes it
    if (mbind(data_, static_cast<size_t>(bytes), MPOL_BIND, &mask, sizeof(mask) * 8, 0) != 0) {
      return HostMemoryError(absl::StrCat("mbind to NUMA node ", options_.numa_node), bytes, errno);
    }
  }
  return absl::OkStatus();
}

HostPool::~HostPool() {
  Cancel();
  if (thread_.joinable()) thread_.join();
  while (!registrations_.empty()) registrations_.pop_back();
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(options_.size_bytes));
}

void HostPool::Start(std::function<void(int64_t, int64_t)> progress) {
  progress_ = std::move(progress);
  thread_ = std::thread([this] { Run(); });
}

void HostPool::Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

void HostPool::Run() {
  for (int64_t offset = 0; offset < options_.size_bytes; offset += options_.chunk_bytes) {
    const int64_t bytes = std::min(options_.chunk_bytes, options_.size_bytes - offset);
    if (absl::Status status = PinChunk(offset, bytes); !status.ok()) {
      while (!registrations_.empty()) registrations_.pop_back();
      pinned_bytes_.store(0, std::memory_order_relaxed);
      Finish(std::move(status));
      return;
    }
    const int64_t pinned = offset + bytes;
    pinned_bytes_.store(pinned, std::memory_order_relaxed);
    if (progress_) progress_(pinned, options_.size_bytes);
  }
  Finish(absl::OkStatus());
}

absl::Status HostPool::PinChunk(int64_t offset, int64_t bytes) {
  if (cancelled_.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kCancelled, "DRAINING", "pinning the host pool was cancelled");
  }
  KVTIER_RETURN_IF_ERROR(TakePages(offset, bytes));
  absl::StatusOr<std::unique_ptr<HostRegistration>> registration =
      backend_->RegisterHost(data_ + offset, bytes);
  if (!registration.ok()) {
    return MakeError(registration.status().code(), ErrorReasonOf(registration.status()),
                     absl::StrCat("host memory: chunk ", offset / options_.chunk_bytes, " of ", bytes,
                                  " bytes: ", registration.status().message()),
                     ErrorMetadataOf(registration.status()));
  }
  registrations_.push_back(*std::move(registration));
  return absl::OkStatus();
}

// Takes the pages with one call a thread: where memory is short it fails, it does not fault.
absl::Status HostPool::TakePages(int64_t offset, int64_t bytes) {
  const int64_t pieces = bytes / kPoolAlignmentBytes;
  const int64_t threads = std::min<int64_t>(options_.touch_threads, pieces);
  std::atomic<int> error{0};
  std::vector<std::thread> touching;
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = pieces * t / threads * kPoolAlignmentBytes;
    const int64_t end = pieces * (t + 1) / threads * kPoolAlignmentBytes;
    touching.emplace_back([this, offset, begin, end, &error] {
      const auto length = static_cast<size_t>(end - begin);
      while (madvise(data_ + offset + begin, length, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        error.store(errno, std::memory_order_relaxed);
        return;
      }
    });
  }
  for (std::thread& thread : touching) thread.join();
  const int failed = error.load(std::memory_order_relaxed);
  if (failed == 0) return absl::OkStatus();
  return HostMemoryError(absl::StrCat("taking the pages of chunk ", offset / options_.chunk_bytes),
                         bytes, failed);
}

void HostPool::Finish(absl::Status status) {
  MutexLock lock(&mutex_);
  if (status.ok()) free_[0] = options_.size_bytes;
  state_.store(status.ok() ? State::kReady : State::kFailed, std::memory_order_release);
  status_ = std::move(status);
  changed_.NotifyAll();
}

absl::Status HostPool::WaitReady(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (state_.load(std::memory_order_acquire) == State::kPinning) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                       "the host pool is still being pinned");
    }
    changed_.WaitFor(&mutex_, std::min(left, absl::Hours(1)));
  }
  return status_;
}

absl::StatusOr<PoolPart> HostPool::Carve(int64_t bytes) {
  if (bytes <= 0) return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1");
  int64_t offset = 0;
  const int64_t size = bytes > options_.size_bytes ? bytes : RoundUp(bytes);
  {
    MutexLock lock(&mutex_);
    if (state_.load(std::memory_order_acquire) == State::kPinning) {
      return MakeRetryableError(
          absl::StatusCode::kUnavailable, "POOL_PINNING", "the host pool is still being pinned",
          absl::Milliseconds(500),
          {{"pinned_bytes", absl::StrCat(pinned_bytes_.load(std::memory_order_relaxed))},
           {"limit_bytes", absl::StrCat(options_.size_bytes)}});
    }
    KVTIER_RETURN_IF_ERROR(status_);
    // The smallest piece that is large enough; of equal ones the first.
    auto best = free_.end();
    int64_t largest = 0;
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      largest = std::max(largest, it->second);
      if (it->second >= size && (best == free_.end() || it->second < best->second)) best = it;
    }
    if (best == free_.end()) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
          absl::StrCat("the host pool of ", options_.size_bytes, " bytes has no room for ", size,
                       " (", options_.size_bytes - used_bytes_, " free, ", largest,
                       " in one piece); a larger --pool_bytes or a smaller block_count is needed"),
          {{"requested_bytes", absl::StrCat(size)},
           {"free_bytes", absl::StrCat(options_.size_bytes - used_bytes_)},
           {"largest_contiguous_bytes", absl::StrCat(largest)},
           {"limit_bytes", absl::StrCat(options_.size_bytes)}});
    }
    offset = best->first;
    const int64_t rest = best->second - size;
    free_.erase(best);
    if (rest > 0) free_[offset + size] = rest;
    used_bytes_ += size;
  }
  PoolPart part(this, data_ + offset, offset, size);
  // What another cache left must not be read by this one.
  Zero(offset, size);
  return part;
}

void HostPool::Zero(int64_t offset, int64_t bytes) const {
  const int64_t pieces = bytes / kPoolAlignmentBytes;
  const int64_t threads = std::min<int64_t>(options_.touch_threads, pieces);
  std::vector<std::thread> zeroing;
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = offset + pieces * t / threads * kPoolAlignmentBytes;
    const int64_t end = offset + pieces * (t + 1) / threads * kPoolAlignmentBytes;
    zeroing.emplace_back([this, begin, end] {
      std::memset(data_ + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  for (std::thread& thread : zeroing) thread.join();
}

void HostPool::GiveBack(int64_t offset, int64_t bytes) {
  MutexLock lock(&mutex_);
  used_bytes_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

HostPool::Stats HostPool::stats() const {
  Stats stats;
  stats.state = state_.load(std::memory_order_acquire);
  stats.total_bytes = options_.size_bytes;
  stats.pinned_bytes = pinned_bytes_.load(std::memory_order_relaxed);
  stats.page_bytes = page_bytes_;
  MutexLock lock(&mutex_);
  stats.used_bytes = used_bytes_;
  for (const auto& [offset, bytes] : free_) {
    stats.largest_free_bytes = std::max(stats.largest_free_bytes, bytes);
  }
  return stats;
}

}  // namespace kvtier
