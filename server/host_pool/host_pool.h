// The host pool: one sealed memfd of pinned memory, or the rows of a pool folder, lent to caches in
// parts.
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
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/shared_memory.h"
#include "server/core/thread.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool_memory.h"
#include "server/host_pool/host_pool_space.h"
#include "server/host_pool/pool_folder.h"

namespace kvtier {

struct HostPoolOptions {
  int64_t size_bytes = 0;  // rounded up to 2 MiB
  HugePages huge_pages = HugePages::kAuto;
  int32_t touch_threads = 2;
  int64_t chunk_bytes = kPinChunkBytes;  // a multiple of 2 MiB; smaller in tests
  int32_t numa_node = -1;                // -1: wherever the touching threads run
  std::string folder;                    // where it outlives the process; empty: nowhere
  bool drop_mismatch = false;            // as in PoolFolderOptions
  std::string system_root;               // in front of /proc and /sys; for tests
};

class HostPool;

// A part of the pool; goes back when destroyed. Zero-filled when it is given out.
class PoolPart {
 public:
  PoolPart() = default;
  PoolPart(PoolPart&& other) noexcept;
  PoolPart& operator=(PoolPart&& other) noexcept;
  ~PoolPart();

  // Goes back now, known as zeros: nobody but the pool has written to it, and nobody else can.
  void GiveBackUntouched();

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
    int64_t page_bytes = 0;  // 2 MiB if all pages are; else the machine's. 0: not ready yet
    int64_t huge_bytes = 0;  // in 2 MiB pages, as the kernel says; 0: not ready yet
  };

  // Maps the memory; takes no page yet. `backend` must outlive the pool. Errors:
  // FIELD_INVALID; those of PoolFolder::Open; RESOURCE_EXHAUSTED / LIMIT_REACHED with limit and
  // request where the memory cannot be had (machine, container, NUMA node, huge pages).
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(const HostPoolOptions& options,
                                                          DeviceBackend* backend);
  // Cancels, and unregisters chunk by chunk. Every part must have been given back.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Once; a second call does nothing. `progress` runs after each chunk, on a thread of the
  // pool, under no lock; it may call Cancel and stats.
  void Start(std::function<void(int64_t pinned_bytes, int64_t total_bytes)> progress);
  // Stops within a chunk; the pool ends up kFailed (UNAVAILABLE / DRAINING) unless it is ready.
  // Returns at once.
  void Cancel();
  // OK when ready; why it failed; or DEADLINE_EXCEEDED, by the machine's clock. On failure
  // nothing stays registered, and the pages go back to the system.
  absl::Status WaitReady(absl::Time deadline);

  // A part of at least `bytes`, whole 2 MiB pieces, zero-filled: what another cache left in it
  // takes about 0.1 s a GiB to wipe. `may_go_on`, if there is one, is asked before each 64 MiB of
  // that, on threads of the pool too, under no lock: what it refuses with is the error, and what
  // is wiped stays known as zeros, so that the next one has less to do. Errors: UNAVAILABLE /
  // POOL_PINNING with a retry hint, RESOURCE_EXHAUSTED / POOL_EXHAUSTED, or why the pool failed.
  absl::StatusOr<PoolPart> Carve(int64_t bytes,
                                 const std::function<absl::Status()>& may_go_on = nullptr);

  // OK, or as Carve.
  absl::Status CheckReady() const;
  // The part that a cache of an earlier daemon has, as it is; before the pool is ready, too.
  // Errors: DATA_LOSS where it is not inside the pool, or somebody has a piece of it.
  absl::StatusOr<PoolPart> Adopt(int64_t offset_bytes, int64_t bytes);

  // For workers, who map their part of it. Sealed unless there is a folder: nobody can change its
  // size.
  const UniqueFd& fd() const { return memory_.fd(); }
  // Null: the pool ends with the process.
  PoolFolder* folder() const { return folder_.get(); }
  // Never waits for the pinning, nor for a part that is being wiped.
  Stats stats() const;
  // As in HostPoolOptions.
  const std::string& system_root() const { return options_.system_root; }

 private:
  friend class PoolPart;

  HostPool(const HostPoolOptions& options, DeviceBackend* backend, PoolMemory memory,
           std::unique_ptr<PoolFolder> folder);
  void Run();
  absl::Status CheckReadyLocked() const KVTIER_REQUIRES(mutex_);
  absl::Status Exhausted(int64_t bytes) const KVTIER_REQUIRES(mutex_);
  absl::Status PinAll();
  absl::Status PinChunk(int64_t chunk, int64_t offset, int64_t bytes);
  absl::Status TakePages(int64_t offset, int64_t bytes);
  void UnpinAll();
  void Finish(absl::Status status);
  void GiveBack(int64_t offset_bytes, int64_t size_bytes, bool untouched);
  absl::Status Wipe(const std::vector<PoolSpace::Range>& ranges,
                    const std::function<absl::Status()>& may_go_on);
  // Calls part(offset, bytes) for pieces of [offset, offset + bytes) on `touch_threads` threads.
  void InParallel(int64_t offset, int64_t bytes,
                  const std::function<void(int64_t offset, int64_t bytes)>& part) const;

  const HostPoolOptions options_;
  DeviceBackend* const backend_;
  const std::unique_ptr<PoolFolder> folder_;
  const PoolMemory memory_;
  std::function<void(int64_t, int64_t)> progress_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> pinned_bytes_{0};
  std::atomic<int64_t> huge_bytes_{0};
  std::atomic<State> state_{State::kPinning};
  std::vector<std::unique_ptr<HostRegistration>> registrations_;  // of thread_ until it ends

  mutable Mutex mutex_;  // rank: leaf
  CondVar changed_;
  bool started_ KVTIER_GUARDED_BY(mutex_) = false;
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
  PoolSpace space_ KVTIER_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace kvtier
