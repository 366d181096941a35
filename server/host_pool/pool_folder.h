// A folder in which the host pool outlives the daemon
// (docs/adr/0019-the-pool-outlives-the-daemon.md).
//
//   rows          the pool itself
//   pool          its manifest; there once all else is
//   cache-<hex>   one for each cache
//
// A file counts once it has its name: files are made under another one and renamed. Whatever does
// not fit - another machine start, a damaged manifest, a cache that lies outside the pool - is
// dropped, and `dropped` says why.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"
#include "server/host_pool/cache_file.h"
#include "server/host_pool/pool_file.h"

namespace kvtier {

struct PoolFolderOptions {
  std::string path;
  int64_t pool_bytes = 0;      // a multiple of 2 MiB
  bool drop_mismatch = false;  // a pool of another size or version is no error
  std::string system_root;     // in front of /proc; for tests
};

// Not thread-safe, but for NewCacheFile and EarlierRunsMapThePool.
class PoolFolder {
 public:
  // Takes the folder, which no other daemon may use meanwhile, and makes it and the pool where they
  // are not there. Takes no page of the rows. Errors: FIELD_INVALID (not on tmpfs or hugetlbfs, not
  // this user's alone, in use), LAYOUT_MISMATCH (another pool_bytes or version), LIMIT_REACHED
  // (also where what is there cannot be looked at: then nothing of it is dropped).
  static absl::StatusOr<std::unique_ptr<PoolFolder>> Open(const PoolFolderOptions& options);
  PoolFolder(const PoolFolder&) = delete;
  PoolFolder& operator=(const PoolFolder&) = delete;

  // The rows. Workers are given this very descriptor's file: while one has it mapped, later
  // daemons see it in EarlierRunsMapThePool.
  UniqueFd TakeRows() { return std::move(rows_); }
  bool rows_are_new() const { return rows_are_new_; }
  // Of the rows, when they were opened: they need not be had again.
  int64_t resident_bytes() const { return resident_bytes_; }
  // On hugetlbfs: its pages are 2 MiB, and reserved.
  bool has_huge_pages() const { return has_huge_pages_; }

  // The caches of earlier daemons, once.
  std::vector<CacheFile> TakeKept() { return std::move(kept_); }
  // What was there and is not used, with the reasons.
  const std::vector<std::string>& dropped() const { return dropped_; }

  // For a new cache; `pool_id` of the manifest is set here.
  absl::StatusOr<CacheFile> NewCacheFile(CacheManifest manifest) const;

  // Does a process that got the rows from an earlier daemon still map them?
  bool EarlierRunsMapThePool() const;

 private:
  explicit PoolFolder(const PoolFolderOptions& options) : options_(options) {}
  absl::Status OpenFolder();
  absl::Status OpenPool();
  // The pool that is there; NOT_FOUND or DATA_LOSS: none that can be used.
  absl::Status AdoptPool(const std::string& machine_boot_id);
  absl::Status MakePool(const std::string& machine_boot_id);
  // DATA_LOSS: a worker has locked the rows, which can't be this run's then.
  absl::Status StartRun();
  // Leaves the pool that is there, because of `why`, and makes another.
  absl::Status StartAnew(absl::string_view why);
  // False: one that may have been a worker's is lost.
  absl::StatusOr<bool> AdoptCaches();
  absl::StatusOr<std::vector<std::string>> FileNames() const;  // of our own
  absl::Status RemoveAllFiles() const;

  const PoolFolderOptions options_;
  UniqueFd folder_;
  FolderView view_;
  PoolFile manifest_file_;
  std::string pool_id_;
  UniqueFd rows_;
  UniqueFd probe_;  // of the rows, too; nobody else has it
  int64_t run_ = 0;
  bool rows_are_new_ = false;
  bool has_huge_pages_ = false;
  int64_t resident_bytes_ = 0;
  std::vector<CacheFile> kept_;
  std::vector<std::string> dropped_;
};

}  // namespace kvtier
