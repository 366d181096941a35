// The pool folder, as a daemon finds it: whatever has become of its files, what is adopted is a
// manifest with its checksum and a layout that is possible, inside the pool, and nothing falls
// over. Workers can write the rows and what is backed, and another program of the same user all of
// it.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/shared_memory.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/host_pool/manifest.h"
#include "server/host_pool/manifest_forger.h"
#include "server/session/node.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

constexpr int64_t kPoolBytes = int64_t{8} << 20;
constexpr int kChangesMax = 16;
constexpr size_t kChangeBytes = 6;  // what, file, two of the place, two of the value
constexpr Peer kPeer = {.pid = 1, .uid = 1000};

using Files = std::map<std::string, std::string>;

CacheLayout Layout(int32_t layers) {
  CacheLayout layout;
  layout.block_size = 4;
  layout.block_count = 8;
  layout.max_requests = 2;
  layout.max_blocks_per_request = 8;
  layout.step_rows = 2;
  layout.dtype_tag = "bytes";
  GroupLayout group;
  for (int32_t i = 0; i < layers; ++i) {
    group.layers.push_back({.value_bytes = 64, .row_stride = 64});
  }
  group.top_k = 4;
  group.hot_size = 8;
  layout.groups = {group};
  return layout;
}

class World {
 public:
  World();
  ~World() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  absl::Status Play(absl::string_view input, Played* played);

 private:
  absl::StatusOr<std::unique_ptr<HostPool>> Open();
  absl::Status Adopt(const Files& files, Played* played);
  absl::Status Use(Node& node, const std::string& cache, const CacheLayout& layout);
  void Write(const Files& files) const;

  std::string path_;
  ManualClock clock_{absl::FromUnixSeconds(1'000'000'000)};
  std::unique_ptr<DeviceBackend> backend_ =
      *MakeCpuBackend({.memory_bytes_max = int64_t{64} << 20});
  Files origin_;  // of a pool with two caches
};

absl::StatusOr<std::unique_ptr<HostPool>> World::Open() {
  KVTIER_ASSIGN_OR_RETURN(auto pool, HostPool::Create({.size_bytes = kPoolBytes,
                                                       .huge_pages = HugePages::kNever,
                                                       .touch_threads = 1,
                                                       .chunk_bytes = kPoolBytes,
                                                       .folder = path_,
                                                       .drop_mismatch = true},
                                                      backend_.get()));
  pool->Start([](int64_t, int64_t) {});
  KVTIER_RETURN_IF_ERROR(pool->WaitReady(absl::InfiniteFuture()));
  return pool;
}

World::World() {
  char name[] = "/dev/shm/kvtier-fuzz-XXXXXX";
  path_ = mkdtemp(name);
  const auto pool = *Open();
  {
    Node node({.version = "fuzz"}, &clock_, backend_.get(), pool.get());
    const std::string session = *node.OpenSession("worker", kPeer, nullptr);
    const absl::Time soon = clock_.Now() + absl::Hours(1);
    for (const int32_t layers : {1, 2}) {
      const std::string cache = absl::StrCat("kv", layers);
      const auto attached = node.AttachCache(session, cache, Layout(layers), "", soon);
      node.AdmitRequest(session, cache, "r", 0, soon).IgnoreError();
      node.AssignBlocks(session, cache, "r", 3, {}, {}, soon).IgnoreError();
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string file = entry.path().filename();
    if (file == "rows") continue;
    // Random names would make an input mean something else in the next process.
    const UniqueFd fd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    std::string bytes(entry.file_size(), '\0');
    if (pread(fd.get(), bytes.data(), bytes.size(), 0) < 0) abort();
    const absl::StatusOr<CacheManifest> manifest = DecodeCacheManifest(bytes);
    origin_[manifest.ok() ? absl::StrCat("cache-", manifest->cache) : file] = bytes;
  }
}

void World::Write(const Files& files) const {
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (entry.path().filename() != "rows") unlink(entry.path().c_str());
  }
  for (const auto& [name, bytes] : files) {
    const UniqueFd fd(
        open(absl::StrCat(path_, "/", name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (ftruncate(fd.get(), static_cast<int64_t>(bytes.size())) != 0) abort();
    if (pwrite(fd.get(), bytes.data(), bytes.size(), 0) < 0) abort();
  }
}

// One change of `file`: whole words of the manifest, bytes anywhere, its length, its checksum.
void ChangeFile(const uint8_t* change, std::string* bytes) {
  const size_t place = change[2] + 256u * change[3];
  const size_t value = change[4] + 256u * change[5];
  int64_t words[] = {0, 1, -1, INT32_MAX, INT64_MAX, INT64_MIN, 1 << 20, 4096};
  switch (change[0] % 8) {
    case 0:
    case 1: {  // a word of the manifest
      const size_t at = place % 64 * sizeof(int64_t);
      const int64_t word =
          change[0] % 16 < 8 ? static_cast<int64_t>(value) : words[value % std::size(words)];
      if (at + sizeof(word) <= bytes->size()) std::memcpy(bytes->data() + at, &word, sizeof(word));
      return;
    }
    case 2:
      if (!bytes->empty()) (*bytes)[place % std::min<size_t>(bytes->size(), 600)] ^= change[4];
      return;
    case 3:  // records, generations
      if (!bytes->empty()) (*bytes)[(place * 8 + value) % bytes->size()] ^= change[0];
      return;
    case 4:
      bytes->resize(place % 32 * 4096);
      return;
    case 5:
      bytes->resize(std::min<size_t>(bytes->size(), place));
      return;
    default:
      return;
  }
}

absl::Status World::Play(absl::string_view input, Played* played) {
  Files files = origin_;
  std::set<std::string> mended;
  for (size_t at = 0; at + kChangeBytes <= input.size() && at < kChangesMax * kChangeBytes;
       at += kChangeBytes) {
    const auto* const change = reinterpret_cast<const uint8_t*>(input.data()) + at;
    if (files.empty()) break;
    auto chosen = files.begin();
    std::advance(chosen, change[1] % files.size());
    const std::string name = chosen->first;
    if (change[0] % 8 == 6) mended.insert(name);
    if (change[0] % 8 == 7) {  // another name
      constexpr absl::string_view kNames[] = {"cache-0", "cache-x.new", "pool.new", "pool",
                                              "cache-"};
      files[std::string(kNames[change[4] % std::size(kNames)])] = chosen->second;
      if (change[5] % 2 == 0) files.erase(name);
    }
    ChangeFile(change, &files[name]);
  }
  for (const std::string& name : mended) {
    if (files.count(name) > 0) ForgeChecksum(&files[name]);
  }
  Write(files);
  return Adopt(files, played);
}

absl::Status World::Adopt(const Files& files, Played* played) {
  ++played->operations;
  absl::StatusOr<std::unique_ptr<HostPool>> pool = Open();
  if (!pool.ok()) {
    return absl::InternalError(absl::StrCat("no daemon starts: ", pool.status().ToString()));
  }
  played->errors += !(*pool)->folder()->dropped().empty();
  Node node({.version = "fuzz"}, &clock_, backend_.get(), pool->get());
  const auto adopted = node.AdoptCaches();
  if (!adopted.ok()) {
    // No room on this machine for what a possible layout wants is no reason to drop it.
    return absl::IsResourceExhausted(adopted.status()) ? absl::OkStatus() : adopted.status();
  }
  const NodeSnapshot snapshot = *node.Snapshot("");
  for (const CacheSnapshot& cache : snapshot.caches) {
    const bool whole = std::any_of(files.begin(), files.end(), [&](const auto& file) {
      const auto manifest = DecodeCacheManifest(file.second);
      return manifest.ok() && manifest->cache == cache.cache;
    });
    if (!whole) return absl::InternalError("a cache without its manifest");
    KVTIER_RETURN_IF_ERROR(ValidateLayout(cache.layout));
    KVTIER_RETURN_IF_ERROR(Use(node, cache.cache, cache.layout));
  }
  return absl::OkStatus();
}

// What was adopted works as any cache, whatever its records say.
absl::Status World::Use(Node& node, const std::string& cache, const CacheLayout& layout) {
  const absl::Time soon = clock_.Now() + absl::Hours(1);
  KVTIER_ASSIGN_OR_RETURN(const std::string session, node.OpenSession("worker", kPeer, nullptr));
  const auto attached = node.AttachCache(session, cache, layout, "", soon);
  // A layout may be possible, and too large for this machine.
  if (!attached.ok()) return absl::OkStatus();
  KVTIER_ASSIGN_OR_RETURN(const auto kept, node.ListKeptBlocks(session, cache, 0, 1000));
  KVTIER_RETURN_IF_ERROR(node.AdmitRequest(session, cache, "r", 0, soon).status());
  for (const KeptBlockInfo& block : kept) {
    const auto shared =
        node.AssignBlocks(session, cache, "r", 0, {block.block_id}, {block.generation}, soon);
    // The table of a request may have less room than the cache.
    if (!shared.ok() && !absl::IsInvalidArgument(shared.status())) return shared.status();
  }
  const auto fresh = node.AssignBlocks(session, cache, "r", 1, {}, {}, soon);
  if (fresh.ok() && fresh->generations[0] < 1)
    return absl::InternalError("an impossible generation");
  return node.ReleaseRequest(session, cache, "r", soon).status();
}

absl::Status Play(absl::string_view input, Played* played) {
  static World world;
  return world.Play(input, played);
}

std::vector<std::string> Changes(absl::string_view input) {
  std::vector<std::string> changes;
  for (size_t at = 0; at + kChangeBytes <= input.size(); at += kChangeBytes) {
    changes.emplace_back(input.substr(at, kChangeBytes));
  }
  return changes;
}

std::string Mutate(absl::string_view input, Random& random) {
  std::vector<std::string> changes = Changes(input);
  if (changes.size() < kChangesMax && Below(random, 3) != 0) {
    std::string change;
    for (size_t i = 0; i < kChangeBytes; ++i) change += static_cast<char>(random());
    // Mostly near the beginning, with a checksum that fits.
    if (Below(random, 4) != 0) change[3] = 0;
    changes.push_back(change);
    if (Below(random, 2) == 0) changes.push_back(std::string("\x06") + change.substr(1));
  }
  std::string made;
  for (const std::string& change : changes) made += change;
  return Below(random, 2) == 0 ? MutateBytes(made, random) : made;
}

}  // namespace

Target GetTarget() { return {.play = Play, .mutate = Mutate, .split = Changes}; }

}  // namespace kvtier::fuzz
