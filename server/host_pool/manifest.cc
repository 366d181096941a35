#include "server/host_pool/manifest.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Raise it with every change of a manifest or of where the arrays of a file lie.
// 2: caches have owners. Nobody knows those of version 1, so it is refused like any other.
constexpr int64_t kVersion = 2;
constexpr int64_t kPoolMagic = 0x6c6f6f705f76746b;   // "ktv_pool"
constexpr int64_t kCacheMagic = 0x656863615f76746b;  // "ktv_ache"
constexpr size_t kHeaderWords = 4;                   // magic, version, body bytes, checksum

// FNV-1a: against a torn or foreign file, not against an enemy.
int64_t ChecksumOf(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash);
}

class Writer {
 public:
  void Word(int64_t value) { Append(&body_, value); }
  void Text(absl::string_view text) {
    Word(static_cast<int64_t>(text.size()));
    body_.append(text.data(), text.size());
  }
  std::string Finish(int64_t magic) const {
    std::string bytes;
    Append(&bytes, magic);
    Append(&bytes, kVersion);
    Append(&bytes, static_cast<int64_t>(body_.size()));
    Append(&bytes, ChecksumOf(body_));
    return bytes + body_;
  }

 private:
  static void Append(std::string* to, int64_t value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    to->append(bytes, sizeof(value));
  }

  std::string body_;
};

// After a read past the end everything is zero, and ok() false.
class Reader {
 public:
  static absl::StatusOr<Reader> Open(absl::string_view bytes, int64_t magic) {
    Reader header(bytes);
    if (header.Word() != magic) return absl::DataLossError("it is no manifest of this kind");
    const int64_t version = header.Word();
    const int64_t body_bytes = header.Word();
    const int64_t checksum = header.Word();
    if (!header.ok_) return absl::DataLossError("its header is cut off");
    if (version != kVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("it is of version ", version, ", and this daemon knows ", kVersion));
    }
    const absl::string_view rest = bytes.substr(kHeaderWords * sizeof(int64_t));
    if (body_bytes < 0 || body_bytes > static_cast<int64_t>(rest.size()) ||
        ChecksumOf(rest.substr(0, body_bytes)) != checksum) {
      return absl::DataLossError("its checksum is wrong");
    }
    return Reader(rest.substr(0, body_bytes));
  }

  int64_t Word() {
    int64_t value = 0;
    if (!Has(sizeof(value))) return 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  int32_t Number() { return static_cast<int32_t>(Word()); }
  std::string Text() {
    const int64_t size = Word();
    if (!Has(size)) return "";
    std::string text(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return text;
  }
  // A number of things that take a word each at least.
  int64_t Count() {
    const int64_t count = Word();
    const auto count_max = static_cast<int64_t>(bytes_.size() / sizeof(int64_t));
    if (ok_ && count >= 0 && count <= count_max) return count;
    ok_ = false;
    return 0;
  }
  absl::Status Finish() const {
    return ok_ && bytes_.empty() ? absl::OkStatus() : absl::DataLossError("its length is wrong");
  }

 private:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}
  bool Has(int64_t size) {
    ok_ = ok_ && size >= 0 && size <= static_cast<int64_t>(bytes_.size());
    return ok_;
  }

  absl::string_view bytes_;
  bool ok_ = true;
};

void WriteAccess(const CacheAccess& access, Writer* writer) {
  writer->Word(access.owner_uid);
  writer->Word(static_cast<int64_t>(access.sharing.everybody));
  for (const std::vector<int32_t>* ids : {&access.sharing.uids, &access.sharing.gids}) {
    writer->Word(static_cast<int64_t>(ids->size()));
    for (const int32_t id : *ids) writer->Word(id);
  }
}

CacheAccess ReadAccess(Reader* reader) {
  CacheAccess access;
  access.owner_uid = reader->Number();
  access.sharing.everybody = reader->Word() != 0;
  for (std::vector<int32_t>* ids : {&access.sharing.uids, &access.sharing.gids}) {
    ids->resize(reader->Count());
    for (int32_t& id : *ids) id = reader->Number();
  }
  return access;
}

void WriteLayout(const CacheLayout& layout, Writer* writer) {
  for (const int32_t value :
       {layout.block_size, layout.block_count, layout.max_requests, layout.rows_per_request,
        layout.max_blocks_per_request, layout.step_rows, static_cast<int32_t>(layout.share_rows),
        static_cast<int32_t>(layout.eviction_policy)}) {
    writer->Word(value);
  }
  writer->Text(layout.dtype_tag);
  writer->Word(static_cast<int64_t>(layout.groups.size()));
  for (const GroupLayout& group : layout.groups) {
    writer->Word(group.top_k);
    writer->Word(group.hot_size);
    writer->Word(static_cast<int64_t>(group.layers.size()));
    for (const RowLayout& row : group.layers) {
      writer->Word(static_cast<int64_t>(row.format));
      writer->Word(row.value_bytes);
      writer->Word(row.scale_bytes);
      writer->Word(row.page_rows);
      writer->Word(row.row_stride);
      writer->Word(row.page_bytes);
    }
  }
}

CacheLayout ReadLayout(Reader* reader) {
  CacheLayout layout;
  for (int32_t* value :
       {&layout.block_size, &layout.block_count, &layout.max_requests, &layout.rows_per_request,
        &layout.max_blocks_per_request, &layout.step_rows}) {
    *value = reader->Number();
  }
  layout.share_rows = reader->Number() != 0;
  layout.eviction_policy = static_cast<EvictionPolicy>(reader->Number());
  layout.dtype_tag = reader->Text();
  layout.groups.resize(reader->Count());
  for (GroupLayout& group : layout.groups) {
    group.top_k = reader->Number();
    group.hot_size = reader->Number();
    group.layers.resize(reader->Count());
    for (RowLayout& row : group.layers) {
      row.format = static_cast<RowFormat>(reader->Number());
      row.value_bytes = reader->Number();
      row.scale_bytes = reader->Number();
      row.page_rows = reader->Number();
      row.row_stride = reader->Word();
      row.page_bytes = reader->Word();
    }
  }
  return layout;
}

}  // namespace

std::string EncodeManifest(const PoolManifest& manifest) {
  Writer writer;
  writer.Text(manifest.machine_boot_id);
  writer.Text(manifest.pool_id);
  writer.Word(manifest.pool_bytes);
  return writer.Finish(kPoolMagic);
}

std::string EncodeManifest(const CacheManifest& manifest) {
  Writer writer;
  writer.Text(manifest.pool_id);
  writer.Text(manifest.cache);
  WriteAccess(manifest.access, &writer);
  WriteLayout(manifest.layout, &writer);
  writer.Word(manifest.part_offset_bytes);
  writer.Word(manifest.part_bytes);
  return writer.Finish(kCacheMagic);
}

absl::StatusOr<PoolManifest> DecodePoolManifest(absl::string_view bytes) {
  KVTIER_ASSIGN_OR_RETURN(Reader reader, Reader::Open(bytes, kPoolMagic));
  PoolManifest manifest;
  manifest.machine_boot_id = reader.Text();
  manifest.pool_id = reader.Text();
  manifest.pool_bytes = reader.Word();
  KVTIER_RETURN_IF_ERROR(reader.Finish());
  return manifest;
}

absl::StatusOr<CacheManifest> DecodeCacheManifest(absl::string_view bytes) {
  KVTIER_ASSIGN_OR_RETURN(Reader reader, Reader::Open(bytes, kCacheMagic));
  CacheManifest manifest;
  manifest.pool_id = reader.Text();
  manifest.cache = reader.Text();
  manifest.access = ReadAccess(&reader);
  manifest.layout = ReadLayout(&reader);
  manifest.part_offset_bytes = reader.Word();
  manifest.part_bytes = reader.Word();
  KVTIER_RETURN_IF_ERROR(reader.Finish());
  return manifest;
}

}  // namespace kvtier
