// The host pool: one sealed memfd of pinned memory, lent to caches in parts.
//
//   auto pool = HostPool::Create({.size_bytes = int64_t{1} << 30}, backend.get());
//   (*pool)->Start([](int64_t pinned, int64_t total) { ... });
//   (*pool)->WaitReady(deadline);
//   auto part = (*pool)->Carve(bytes);
//
// Create reserves nothing. Start touches and registers the memory in chunks on threads of its
// own, so that the daemon can answer (and be stopped) meanwhile. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"

namespace kvtier {

enum class HugePages {
  kAuto,     // transparent 2 MiB pages where the system gives them
  kNever,    // 4 KiB pages
  kRequire,  // reserved 2 MiB pages (hugetlbfs), or an error
};

struct HostPoolOptions {
  int64_t size_bytes = 0;  // rounded up to 2 MiB
  HugePages huge_pages = HugePages::kAuto;
  int32_t touch_threads = 2;
  int64_t chunk_bytes = kPinChunkBytes;  // a multiple of 2 MiB; smaller in tests
  int32_t numa_node = -1;                // -1: wherever the touching threads run
};

class HostPool;

// A part of the pool; goes back when destroyed. Zero-filled when it is given out.
class PoolPart {
 public:
  PoolPart() = default;
  PoolPart(PoolPart&& other) noexcept;
  PoolPart& operator=(PoolPart&& other) noexcept;
  ~PoolPart();

  uint8_t* data() const { return data_; }
  int64_t offset_bytes() const { return offset_bytes_; }  // into the pool's descriptor
  int64_t size_bytes() const { return size_bytes_; }

 private:
  friend class HostPool;
  PoolPart(HostPool* pool, uint8_t* data, int64_t offset_bytes, int64_t size_bytes)
      : pool_(pool), data_(data), offset_bytes_(offset_bytes), size_bytes_(size_bytes) {}
  void GiveBack();

  HostPool* pool_ = nullptr;
  uint8_t* data_ = nullptr;
  int64_t offset_bytes_ = 0;
  int64_t size_bytes_ = 0;
};

class HostPool {
 public:
  enum class State { kPinning, kReady, kFailed };

  struct Stats {
    State state = State::kPinning;
    int64_t total_bytes = 0;
    int64_t pinned_bytes = 0;
    int64_t used_bytes = 0;
    int64_t largest_free_bytes = 0;
    int64_t page_bytes = 0;  // of the pages really got
  };

  // Maps the memory; takes no page yet. `backend` must outlive the pool. Errors:
  // FIELD_INVALID; RESOURCE_EXHAUSTED / LIMIT_REACHED with limit and request where the memory
  // cannot be had (machine, container, huge pages).
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const HostPoolOptions& options,
                                                          DeviceBackend* backend);
  // Cancels, and unregisters chunk by chunk. Every part must have been given back.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Once. `progress` runs after each chunk, on a thread of the pool.
  void Start(std::function<void(int64_t pinned_bytes, int64_t total_bytes)> progress);
  // Stops before the next chunk; the pool ends up kFailed.
  void Cancel();
  // OK when ready; why it failed; or DEADLINE_EXCEEDED. On failure nothing stays registered.
  absl::Status WaitReady(absl::Time deadline);

  // A part of at least `bytes`, whole 2 MiB pieces. Errors: UNAVAILABLE / POOL_PINNING with a
  // retry hint, RESOURCE_EXHAUSTED / POOL_EXHAUSTED, or why the pool failed.
  absl::StatusOr<PoolPart> Carve(int64_t bytes);

  const UniqueFd& fd() const { return fd_; }
  Stats stats() const;

 private:
  friend class PoolPart;

  HostPool(const HostPoolOptions& options, DeviceBackend* backend);
  absl::Status Map();
  void Run();
  absl::Status PinChunk(int64_t offset, int64_t bytes);
  absl::Status TakePages(int64_t offset, int64_t bytes);
  void Finish(absl::Status status);
  void GiveBack(int64_t offset_bytes, int64_t size_bytes);
  void Zero(int64_t offset, int64_t bytes) const;

  HostPoolOptions options_;
  DeviceBackend* const backend_;
  UniqueFd fd_;
  uint8_t* data_ = nullptr;
  int64_t page_bytes_ = 0;
  std::function<void(int64_t, int64_t)> progress_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> pinned_bytes_{0};
  std::atomic<State> state_{State::kPinning};
  std::vector<std::unique_ptr<HostRegistration>> registrations_;  // of thread_ until it ends

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> free_ KVTIER_GUARDED_BY(mutex_);  // offset -> bytes
  int64_t used_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace kvtier
