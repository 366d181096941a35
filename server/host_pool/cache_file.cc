#include "server/host_pool/cache_file.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// The largest layout takes 13 KiB.
constexpr int64_t kManifestBytesMax = 64 << 10;
constexpr int64_t kRetentionOffset = kManifestBytesMax;
constexpr int64_t kHeldOffset = kRetentionOffset + kArrayAlignmentBytes;

// Changes while the cache lives, hence beside the manifest and its checksum.
struct RetentionWords {
  int64_t blocks_max;
  int64_t duration_ms;
};

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t TagsOffset(int32_t block_count) {
  return RoundUp(kHeldOffset + block_count, kArrayAlignmentBytes);
}

int64_t GenerationsOffset(int32_t block_count, int64_t page_bytes) {
  return RoundUp(TagsOffset(block_count) + int64_t{block_count} * 8, page_bytes);
}

}  // namespace

absl::StatusOr<CacheFile> CacheFile::Create(const FolderView& folder, const std::string& file_name,
                                            const CacheManifest& manifest) {
  const std::string bytes = EncodeManifest(manifest);
  if (static_cast<int64_t>(bytes.size()) > kManifestBytesMax) {
    return InternalError(absl::StrCat("a manifest of ", bytes.size(), " bytes"));
  }
  const int32_t block_count = manifest.layout.block_count;
  CacheFile file;
  KVTIER_ASSIGN_OR_RETURN(file.file_,
                          PoolFile::Create(folder, file_name,
                                           GenerationsOffset(block_count, folder.page_bytes) +
                                               int64_t{block_count} * 4));
  file.manifest_ = manifest;
  std::memcpy(file.file_.data(), bytes.data(), bytes.size());
  const absl::Status finished = file.Finish(folder);
  if (finished.ok()) return file;
  file.Remove();
  return finished;
}

absl::StatusOr<CacheFile> CacheFile::Open(const FolderView& folder, const std::string& file_name) {
  CacheFile file;
  KVTIER_ASSIGN_OR_RETURN(file.file_, PoolFile::Open(folder, file_name));
  if (file.file_.size_bytes() < kHeldOffset) return absl::DataLossError("it is too short");
  KVTIER_ASSIGN_OR_RETURN(
      file.manifest_,
      DecodeCacheManifest({reinterpret_cast<const char*>(file.file_.data()), kManifestBytesMax}));
  KVTIER_RETURN_IF_ERROR(file.Finish(folder));
  if (file.generations_bytes() < int64_t{file.manifest_.layout.block_count} * 4) {
    return absl::DataLossError("it is too short for its blocks");
  }
  return file;
}

absl::Status CacheFile::Finish(const FolderView& folder) {
  if (absl::Status valid = ValidateLayout(manifest_.layout); !valid.ok()) {
    return absl::DataLossError(absl::StrCat("its layout is impossible: ", valid.message()));
  }
  generations_offset_bytes_ = GenerationsOffset(manifest_.layout.block_count, folder.page_bytes);
  KVTIER_ASSIGN_OR_RETURN(read_only_fd_, file_.OpenReadOnly());
  return absl::OkStatus();
}

BlockRecords CacheFile::records() const {
  uint8_t* const data = file_.data();
  return {.generations = reinterpret_cast<int32_t*>(data + generations_offset_bytes_),
          .held = data + kHeldOffset,
          .tags = reinterpret_cast<int64_t*>(data + TagsOffset(manifest_.layout.block_count))};
}

Retention CacheFile::retention() const {
  RetentionWords words;
  std::memcpy(&words, file_.data() + kRetentionOffset, sizeof(words));
  return {.blocks_max = static_cast<int32_t>(words.blocks_max),
          .duration = absl::Milliseconds(words.duration_ms)};
}

void CacheFile::SetRetention(const Retention& retention) const {
  const RetentionWords words = {.blocks_max = retention.blocks_max,
                                .duration_ms = absl::ToInt64Milliseconds(retention.duration)};
  std::memcpy(file_.data() + kRetentionOffset, &words, sizeof(words));
}

}  // namespace kvtier
