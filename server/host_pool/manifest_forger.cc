#include "server/host_pool/manifest_forger.h"

#include <cstdint>
#include <cstring>

namespace kvtier {
namespace {

constexpr size_t kBodyBytesAt = 16, kChecksumAt = 24;

}  // namespace

void ForgeChecksum(std::string* bytes) {
  if (bytes->size() < kManifestHeaderBytes) return;
  int64_t body_bytes = 0;
  std::memcpy(&body_bytes, bytes->data() + kBodyBytesAt, sizeof(body_bytes));
  const auto bytes_max = static_cast<int64_t>(bytes->size() - kManifestHeaderBytes);
  if (body_bytes < 0 || body_bytes > bytes_max) return;
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < body_bytes; ++i) {
    const char byte = (*bytes)[kManifestHeaderBytes + static_cast<size_t>(i)];
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  std::memcpy(bytes->data() + kChecksumAt, &hash, sizeof(hash));
}

}  // namespace kvtier
