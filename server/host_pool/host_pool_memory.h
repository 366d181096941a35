// The memory of the host pool: a sealed memfd or a file of a pool folder, its mapping, and the
// taking of its pages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/shared_memory.h"

namespace kvtier {

enum class HugePages {
  kAuto,     // transparent 2 MiB pages where the system gives them, else 4 KiB
  kNever,    // 4 KiB pages
  kRequire,  // reserved 2 MiB pages (hugetlbfs), or an error
};

// Owns the descriptor and a mapping that starts at a 2 MiB boundary.
class PoolMemory {
 public:
  // `bytes` is a multiple of 2 MiB. Takes no page (reserved huge pages are set aside, though).
  // `numa_node` -1: not bound. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED; FIELD_INVALID for a
  // node that is not there.
  static absl::StatusOr<PoolMemory> Create(int64_t bytes, HugePages huge_pages, int32_t numa_node);

  // The rows of a pool folder. Seals are for memfds: whoever has the descriptor can shrink the
  // file. What lies in it stays. `huge_pages` is kRequire on hugetlbfs.
  static absl::StatusOr<PoolMemory> OfFile(UniqueFd fd, int64_t bytes, HugePages huge_pages,
                                           int32_t numa_node);

  PoolMemory() = default;  // no memory
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  ~PoolMemory();

  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  const UniqueFd& fd() const { return fd_; }

  // Takes the pages of a part, so that no access to it can fault later. Offset and bytes are
  // multiples of 2 MiB. Where memory is short it returns RESOURCE_EXHAUSTED: no SIGBUS.
  // Thread-safe for parts that do not overlap.
  absl::Status TakePages(int64_t offset_bytes, int64_t bytes) const;
  // Gives all pages back to the system; they read as zero afterwards. Those of a file stay.
  void DropPages() const;

  // How many bytes are mapped with 2 MiB pages, as the kernel says. 0 where it does not say.
  int64_t HugeBytes() const;

 private:
  absl::Status Map(HugePages huge_pages);
  absl::Status BindToNode(int32_t numa_node) const;
  void TakeHugePages(uint8_t* begin, int64_t bytes) const;

  UniqueFd fd_;
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
  bool is_file_ = false;
  HugePages huge_pages_ = HugePages::kNever;
};

// The 2 MiB pages in the part [begin, end) of a process's address space, from the text of its
// /proc/<pid>/smaps.
int64_t HugeBytesInSmaps(const std::string& smaps, uint64_t begin, uint64_t end);

}  // namespace kvtier
