#include "tests/simulation/pool_disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "server/core/limits.h"
#include "server/core/shared_memory.h"
#include "server/host_pool/manifest.h"

namespace kvtier::simulation {
namespace {

constexpr char kRows[] = "rows";
constexpr char kBootIdFolder[] = "/proc/sys/kernel/random";
constexpr int64_t kRowsBytesInPiece = 4096;
constexpr int64_t kHeaderBytes = 32;

std::string MakeFolder() {
  char name[] = "/dev/shm/kvtier-simulation-XXXXXX";
  const char* const made = mkdtemp(name);
  return made == nullptr ? "" : made;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

// A piece of a file at each step.
struct Pieces {
  int64_t bytes, step;
};
Pieces PiecesOf(const std::string& name, int64_t size) {
  if (name == kRows) return {kRowsBytesInPiece, kPoolAlignmentBytes};
  return {size, size};
}

}  // namespace

PoolDisk::PoolDisk() : root_(MakeFolder()) {
  std::error_code ignored;
  std::filesystem::create_directories(root_ + kBootIdFolder, ignored);
}

PoolDisk::~PoolDisk() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void PoolDisk::StartMachine(int64_t number) const {
  std::ofstream(root_ + kBootIdFolder + "/boot_id") << number;
}

void PoolDisk::RemoveCaches() const {
  for (const std::string& name : Names(path())) {
    if (absl::StartsWith(name, "cache-")) unlink((path() + "/" + name).c_str());
  }
}

void PoolDisk::RemoveAll() const {
  for (const std::string& name : Names(path())) unlink((path() + "/" + name).c_str());
}

PoolImage PoolDisk::Read() const {
  PoolImage image;
  for (const std::string& name : Names(path())) {
    const UniqueFd fd(open((path() + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    const int64_t size = lseek(fd.get(), 0, SEEK_END);
    if (size <= 0) continue;
    const Pieces pieces = PiecesOf(name, size);
    std::string& bytes = image[name];
    for (int64_t at = 0; at < size; at += pieces.step) {
      const size_t begin = bytes.size();
      bytes.resize(begin + static_cast<size_t>(pieces.bytes));
      if (pread(fd.get(), bytes.data() + begin, pieces.bytes, at) != pieces.bytes) abort();
    }
  }
  return image;
}

void PoolDisk::PutBack(const PoolImage& image) const {
  for (const std::string& name : Names(path())) {
    if (image.count(name) == 0) unlink((path() + "/" + name).c_str());
  }
  for (const auto& [name, bytes] : image) {
    const UniqueFd fd(open((path() + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const auto size = static_cast<int64_t>(bytes.size());
    const Pieces pieces = PiecesOf(name, size);
    for (int64_t from = 0, at = 0; from < size; from += pieces.bytes, at += pieces.step) {
      if (pwrite(fd.get(), bytes.data() + from, pieces.bytes, at) != pieces.bytes) abort();
    }
  }
}

ManifestOf FindManifest(absl::string_view file) {
  const absl::StatusOr<CacheManifest> manifest = DecodeCacheManifest(file);
  if (!manifest.ok()) return {};
  int64_t body_bytes = 0;
  std::memcpy(&body_bytes, file.data() + 2 * sizeof(body_bytes), sizeof(body_bytes));
  return {.cache = manifest->cache, .length = kHeaderBytes + body_bytes};
}

}  // namespace kvtier::simulation
