// Where the bytes of a cache are that its sessions share: rows, generations, records of its blocks.
//
// Without a pool folder the rows are a part of the pool's memfd, and the generations have memfds of
// their own. With one, the rows and what is backed of them are a part of the pool's rows, and the
// rest is in the cache's file, so that a later daemon finds all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/cache_layout.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"
#include "server/host_pool/block_records.h"
#include "server/host_pool/cache_file.h"
#include "server/host_pool/host_pool.h"
#include "server/hot_tier/hot_tier.h"

namespace kvtier {

// A piece of a file that workers map.
struct SharedRange {
  const UniqueFd* fd = nullptr;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  bool sealed = true;  // against shrinking
};

// Not thread-safe; what it returns is good until Release.
class CacheMemory {
 public:
  // Zeros. `layout` is valid; `may_go_on` as in HostPool::Carve. Errors: those of HostPool::Carve,
  // SharedMemory::Create, PoolFolder::NewCacheFile, DeviceBackend::RegisterHost; nothing stays
  // taken.
  static absl::StatusOr<CacheMemory> Create(absl::string_view name, const CacheAccess& access,
                                            const CacheLayout& layout, HostPool* pool,
                                            DeviceBackend* backend,
                                            const std::function<absl::Status()>& may_go_on);
  // What an earlier daemon left. Errors: those of HostPool::Adopt, DeviceBackend::RegisterHost.
  static absl::StatusOr<CacheMemory> Adopt(CacheFile file, HostPool* pool, DeviceBackend* backend);

  CacheMemory() = default;  // no memory

  // What a cache of that layout takes of the pool.
  static int64_t PoolBytesOf(const CacheLayout& layout, const HostPool& pool);

  HostView host() const;
  BlockRecords records();
  SharedRange rows() const;
  SharedRange block_generation() const;
  SharedRange backed_generation() const;
  // Null: nothing outlives the process.
  const CacheFile* file() const { return file_.valid() ? &file_ : nullptr; }
  // From here on a later daemon finds it.
  absl::Status Commit() { return file_.valid() ? file_.Commit() : absl::OkStatus(); }
  // Rows of a block that are backed at `generation` in all layer groups.
  int32_t RowsBacked(int32_t block, int32_t generation) const;
  // What it takes of the pool.
  int64_t pool_bytes() const { return part_.size_bytes(); }

  // Gives everything back; no later daemon finds it, unless `keep_file`. `untouched`: nobody had
  // its part of the pool, so that the next one need not wipe it.
  void Release(bool keep_file, bool untouched = false);

 private:
  // Generations and records, where there is no file for them.
  absl::Status MakeTracking();
  absl::Status Register(DeviceBackend* backend);

  HostPool* pool_ = nullptr;
  CacheLayout layout_;
  PoolPart part_;
  CacheFile file_;
  std::optional<SharedMemory> block_generation_, backed_generation_;  // without a file
  std::vector<uint8_t> held_;                                         // ditto
  std::vector<int64_t> tags_;                                         // ditto
  std::vector<std::unique_ptr<HostRegistration>> registrations_;
};

}  // namespace kvtier
