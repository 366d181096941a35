#include "server/core/memory_headroom.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

// What differs between the two versions of the memory controller.
struct Controller {
  const char* mount;
  const char* limit_file;
  const char* usage_file;
  // Page cache without shared memory, which is file memory too but cannot be given back.
  const char* inactive_key;
  const char* active_key;
};
constexpr Controller kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                                  "active_file"};
constexpr Controller kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file",
                                  "total_active_file"};

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// A file that holds one number; "max" and whatever is no number: nothing.
std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  int64_t value = 0;
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return std::nullopt;
  return value;
}

// The number after `key` in lines "key 12 ..." or "key: 12 kB".
std::optional<int64_t> FindNumber(const std::string& text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

void LowerTo(int64_t available_bytes, std::string limited_by, MemoryHeadroom* headroom) {
  if (available_bytes >= headroom->available_bytes) return;
  headroom->available_bytes = std::max<int64_t>(available_bytes, 0);
  headroom->limited_by = std::move(limited_by);
}

// What a node can give: its meminfo has lines "Node 1 MemFree: 12 kB", and no MemAvailable.
void ReadNumaNode(absl::string_view root, int node, MemoryHeadroom* headroom) {
  const std::string file = absl::StrCat("/sys/devices/system/node/node", node, "/meminfo");
  const std::optional<std::string> text = ReadFile(absl::StrCat(root, file));
  if (!text) return;
  const std::string lines = absl::StrReplaceAll(*text, {{absl::StrCat("Node ", node, " "), ""}});
  int64_t kib = 0;
  for (const char* key : {"MemFree", "Active(file)", "Inactive(file)"}) {
    kib += FindNumber(lines, key).value_or(0);
  }
  LowerTo(kib * 1024, absl::StrCat("NUMA node ", node, " has ", kib * 1024, " free"), headroom);
}

// The process's path in a hierarchy; `name` is "" for version 2, "memory" for version 1.
std::optional<std::string> CgroupPath(const std::string& proc_cgroup, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(proc_cgroup, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == name) return std::string(parts[2]);
    }
  }
  return std::nullopt;
}

void ReadCgroup(const Controller& controller, absl::string_view root, absl::string_view folder,
                MemoryHeadroom* headroom) {
  const std::string shown = absl::StrCat(controller.mount, folder, "/", controller.limit_file);
  const std::string path = absl::StrCat(root, controller.mount, folder, "/");
  const std::optional<int64_t> limit = ReadNumber(path + controller.limit_file);
  const std::optional<int64_t> used = ReadNumber(path + controller.usage_file);
  // Version 1 has no "max": a limit beyond any machine is none.
  if (!limit || !used || *limit >= (int64_t{1} << 60)) return;
  const std::string stat = ReadFile(path + "memory.stat").value_or("");
  const int64_t page_cache = FindNumber(stat, controller.inactive_key).value_or(0) +
                             FindNumber(stat, controller.active_key).value_or(0);
  const int64_t needed = std::max<int64_t>(*used - page_cache, 0);
  LowerTo(*limit - needed,
          absl::StrCat(shown, " = ", *limit, " with ", needed, " in use without page cache"),
          headroom);
}

// The process's own group and each one above: any of them may have the limit. In a container
// the path may be the host's while the mount starts at the container; what is not there is
// passed over, and the walk ends at the mount's own folder.
void ReadHierarchy(const Controller& controller, absl::string_view root, std::string path,
                   MemoryHeadroom* headroom) {
  while (!path.empty()) {
    if (path != "/") ReadCgroup(controller, root, path, headroom);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  ReadCgroup(controller, root, "", headroom);
}

}  // namespace

MemoryHeadroom ReadMemoryHeadroom(absl::string_view root, int numa_node) {
  MemoryHeadroom headroom;
  const std::string meminfo = ReadFile(absl::StrCat(root, "/proc/meminfo")).value_or("");
  if (const std::optional<int64_t> kib = FindNumber(meminfo, "MemAvailable")) {
    LowerTo(*kib * 1024, absl::StrCat("MemAvailable = ", *kib * 1024), &headroom);
  }
  const std::string groups = ReadFile(absl::StrCat(root, "/proc/self/cgroup")).value_or("");
  if (const std::optional<std::string> path = CgroupPath(groups, "")) {
    ReadHierarchy(kVersion2, root, *path, &headroom);
  }
  if (const std::optional<std::string> path = CgroupPath(groups, "memory")) {
    ReadHierarchy(kVersion1, root, *path, &headroom);
  }
  if (numa_node >= 0) ReadNumaNode(root, numa_node, &headroom);
  return headroom;
}

MemoryHeadroom ReadHugePageHeadroom(absl::string_view root) {
  const std::string folder = absl::StrCat(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/");
  const int64_t free = ReadNumber(folder + "free_hugepages").value_or(0);
  // Set aside for mappings that have not touched them yet.
  const int64_t promised = ReadNumber(folder + "resv_hugepages").value_or(0);
  MemoryHeadroom headroom;
  LowerTo((free - promised) * (int64_t{2} << 20),
          absl::StrCat("reserved 2 MiB pages: ", free, " free, ", promised, " of them promised"),
          &headroom);
  return headroom;
}

absl::Status CheckMemoryHeadroom(const MemoryHeadroom& headroom, absl::string_view purpose,
                                 int64_t bytes) {
  if (bytes <= headroom.available_bytes) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat("not enough host memory for ", purpose, ": need ", bytes, " bytes, have ",
                   headroom.available_bytes, " (", headroom.limited_by, ")"),
      {{"requested_bytes", absl::StrCat(bytes)},
       {"limit", absl::StrCat(headroom.available_bytes)}});
}

}  // namespace kvtier
