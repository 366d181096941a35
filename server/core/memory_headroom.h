// How much memory this process can still take: the machine's and its container's.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvtier {

struct MemoryHeadroom {
  int64_t available_bytes = INT64_MAX;  // INT64_MAX: nothing could be read
  // What sets it, for an error text: "MemAvailable", or the cgroup's limit file with its value.
  std::string limited_by;
};

// The smaller of MemAvailable and, for this process's cgroup and each one above it,
// the limit minus what is used. Page cache is not counted as used: it makes room.
// cgroup v2 and v1. With `numa_node` >= 0 also what that node has free. `root` is put in front
// of /proc and /sys; a test gives it a folder.
MemoryHeadroom ReadMemoryHeadroom(absl::string_view root = "", int numa_node = -1);

// The reserved 2 MiB pages (hugetlbfs) that nobody uses.
MemoryHeadroom ReadHugePageHeadroom(absl::string_view root = "");

// OK, or RESOURCE_EXHAUSTED / LIMIT_REACHED (requested_bytes, limit) where `bytes` more for
// `purpose` cannot fit. Another process may take the memory right after.
absl::Status CheckMemoryHeadroom(const MemoryHeadroom& headroom, absl::string_view purpose,
                                 int64_t bytes);

}  // namespace kvtier
