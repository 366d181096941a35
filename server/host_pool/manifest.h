// What the files of a pool folder say about themselves, so that a later daemon can tell whether
// it may use them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/cache_layout.h"
#include "server/host_pool/cache_access.h"

namespace kvtier {

// Of the pool as a whole.
struct PoolManifest {
  std::string machine_boot_id;  // changes when the machine starts
  std::string pool_id;          // random; the caches' manifests repeat it
  int64_t pool_bytes = 0;
};

// Of one cache.
struct CacheManifest {
  std::string pool_id;
  std::string cache;
  CacheAccess access;
  CacheLayout layout;
  int64_t part_offset_bytes = 0;  // into the rows
  int64_t part_bytes = 0;
};

// Bytes with a magic number, a version and a checksum in front.
std::string EncodeManifest(const PoolManifest& manifest);
std::string EncodeManifest(const CacheManifest& manifest);

// `bytes` may go on behind the manifest. Errors: DATA_LOSS where they are no manifest of this kind,
// or damaged; FAILED_PRECONDITION for another version.
absl::StatusOr<PoolManifest> DecodePoolManifest(absl::string_view bytes);
absl::StatusOr<CacheManifest> DecodeCacheManifest(absl::string_view bytes);

}  // namespace kvtier
