// What a later daemon needs of one cache, in a file of the pool folder: its manifest, its blocks'
// records, and how long it is kept. The rows are in the pool.
//
//   | manifest, retention | held | tags | to a page's end | generations |
//
// The generations start at a page, so that workers can map them alone, and read-only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/shared_memory.h"
#include "server/host_pool/block_records.h"
#include "server/host_pool/manifest.h"
#include "server/host_pool/pool_file.h"

namespace kvtier {

// What stays of a cache when its sessions are gone.
struct Retention {
  int32_t blocks_max = 0;                          // kept blocks; 0: none
  absl::Duration duration = absl::ZeroDuration();  // after the last session left; 0: not at all
};

class CacheFile {
 public:
  // Not found by a later daemon before Commit. Errors: those of PoolFile::Create.
  static absl::StatusOr<CacheFile> Create(const FolderView& folder, const std::string& file_name,
                                          const CacheManifest& manifest);
  // Errors: DATA_LOSS: it is damaged, or of another version.
  static absl::StatusOr<CacheFile> Open(const FolderView& folder, const std::string& file_name);

  CacheFile() = default;  // no file
  bool valid() const { return file_.valid(); }
  const CacheManifest& manifest() const { return manifest_; }
  BlockRecords records() const;
  Retention retention() const;
  void SetRetention(const Retention& retention) const;

  absl::Status Commit() { return file_.Commit(); }
  void Remove() const { file_.Remove(); }

  // The generations, for workers and devices. The descriptor can only be mapped for reading.
  const UniqueFd& read_only_fd() const { return read_only_fd_; }
  int64_t generations_offset_bytes() const { return generations_offset_bytes_; }
  int64_t generations_bytes() const { return file_.size_bytes() - generations_offset_bytes_; }

 private:
  absl::Status Finish(const FolderView& folder);

  PoolFile file_;
  CacheManifest manifest_;
  UniqueFd read_only_fd_;
  int64_t generations_offset_bytes_ = 0;
};

}  // namespace kvtier
