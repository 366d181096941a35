#include "server/host_pool/host_pool_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/core/core_dump.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

// Newer than the system's headers may be.
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvtier {
namespace {

constexpr int64_t kHugePageBytes = kPoolAlignmentBytes;
constexpr int32_t kNumaNodesMax = 1024;

absl::Status HostMemoryError(absl::string_view what, int64_t bytes, int error) {
  // What the kernel calls a bad address is a page that it could not give.
  const absl::string_view cause = error == EFAULT ? "no page left" : strerror(error);
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   absl::StrCat("host memory: ", what, " of ", bytes, " bytes failed: ", cause),
                   {{"requested_bytes", absl::StrCat(bytes)}, {"limit", "host memory"}});
}

int64_t BasePageBytes() { return sysconf(_SC_PAGESIZE); }

// 0, or why the pages of the range cannot be had.
int Populate(uint8_t* begin, int64_t bytes) {
  while (madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// The same for kernels before 5.14, which do not know MADV_POPULATE_WRITE. What lies there stays:
// a worker of an earlier daemon may be writing it.
int AllocateAndTouch(int fd, uint8_t* begin, int64_t offset, int64_t bytes) {
  while (fallocate(fd, 0, offset, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  for (int64_t i = 0; i < bytes; i += BasePageBytes()) {
    std::atomic_ref<uint8_t>(begin[i]).fetch_or(0, std::memory_order_relaxed);
  }
  return 0;
}

}  // namespace

absl::StatusOr<PoolMemory> PoolMemory::Create(int64_t bytes, HugePages huge_pages,
                                              int32_t numa_node) {
  const bool reserved = huge_pages == HugePages::kRequire;
  PoolMemory memory;
  memory.size_bytes_ = bytes;
  memory.huge_pages_ = huge_pages;
  memory.fd_ =
      UniqueFd(memfd_create("kvtier-host-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING |
                                                    (reserved ? MFD_HUGETLB | MFD_HUGE_2MB : 0U)));
  if (!memory.fd_.valid()) return HostMemoryError("memfd_create", bytes, errno);
  if (ftruncate(memory.fd_.get(), bytes) != 0) return HostMemoryError("ftruncate", bytes, errno);
  KVTIER_RETURN_IF_ERROR(memory.Map(huge_pages));
  if (numa_node >= 0) KVTIER_RETURN_IF_ERROR(memory.BindToNode(numa_node));
  if (fcntl(memory.fd_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return HostMemoryError("F_ADD_SEALS", bytes, errno);
  }
  return memory;
}

absl::StatusOr<PoolMemory> PoolMemory::OfFile(UniqueFd fd, int64_t bytes, HugePages huge_pages,
                                              int32_t numa_node) {
  PoolMemory memory;
  memory.size_bytes_ = bytes;
  memory.huge_pages_ = huge_pages;
  memory.is_file_ = true;
  memory.fd_ = std::move(fd);
  KVTIER_RETURN_IF_ERROR(memory.Map(huge_pages));
  if (numa_node >= 0) KVTIER_RETURN_IF_ERROR(memory.BindToNode(numa_node));
  return memory;
}

absl::Status PoolMemory::Map(HugePages huge_pages) {
  // An address range with room to choose a 2 MiB boundary: a large page needs one.
  const auto size = static_cast<size_t>(size_bytes_);
  const size_t room_bytes = size + kHugePageBytes;
  void* room =
      mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return HostMemoryError("mmap", size_bytes_, errno);
  auto* const first = static_cast<uint8_t*>(room);
  const size_t before = -reinterpret_cast<uintptr_t>(room) % kHugePageBytes;
  void* data =
      mmap(first + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0);
  const int error = errno;
  if (data == MAP_FAILED) {
    munmap(room, room_bytes);
    return HostMemoryError(huge_pages == HugePages::kRequire
                               ? "mmap (are so many 2 MiB pages reserved and free?)"
                               : "mmap",
                           size_bytes_, error);
  }
  if (before > 0) munmap(first, before);
  if (before < kHugePageBytes) munmap(first + before + size, kHugePageBytes - before);
  data_ = static_cast<uint8_t*>(data);
  if (huge_pages != HugePages::kRequire) {
    // Refused by a kernel that has none: then there are small pages, which HugeBytes tells.
    (void)madvise(data_, size, huge_pages == HugePages::kAuto ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  LeaveOutOfCores(data_, size);
  return absl::OkStatus();
}

absl::Status PoolMemory::BindToNode(int32_t numa_node) const {
  constexpr int kBits = 8 * sizeof(unsigned long);  // NOLINT(google-runtime-int): mbind's type
  if (numa_node >= kNumaNodesMax) {
    return FieldInvalid("numa_node", absl::StrCat(numa_node),
                        absl::StrCat("below ", kNumaNodesMax));
  }
  std::array<unsigned long, kNumaNodesMax / kBits> mask{};  // NOLINT(google-runtime-int): ditto
  mask[numa_node / kBits] = 1UL << (numa_node % kBits);
  // One bit more: the kernel takes one off.
  if (mbind(data_, static_cast<size_t>(size_bytes_), MPOL_BIND, mask.data(), kNumaNodesMax + 1,
            0) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (error == ENOSYS && numa_node == 0) return absl::OkStatus();  // a kernel with one node only
  return FieldInvalid("numa_node", absl::StrCat(numa_node), "a node that the process may use",
                      absl::StrCat("mbind of the host pool: ", strerror(error)));
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      is_file_(other.is_file_),
      huge_pages_(other.huge_pages_) {}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(is_file_, other.is_file_);
  std::swap(huge_pages_, other.huge_pages_);
  return *this;
}

PoolMemory::~PoolMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
}

// Best effort. Where the system gives 2 MiB pages to who asks (shmem_enabled=advise), the first
// touch of each brings one. Where it does not, which is the default of most systems, a small page
// is there now, and MADV_COLLAPSE (Linux 6.1) makes a large one of it without copying much. It
// makes every processor drain its page lists first, so it is not called without need.
void PoolMemory::TakeHugePages(uint8_t* begin, int64_t bytes) const {
  const int64_t base_bytes = BasePageBytes();
  bool all_huge = true;
  for (int64_t i = 0; i < bytes; i += kHugePageBytes) {
    if (Populate(begin + i, base_bytes) != 0) return;
    // Did the touch of one page bring its neighbour?
    unsigned char resident = 0;
    const bool known = mincore(begin + i + base_bytes, 1, &resident) == 0;
    all_huge = all_huge && known && (resident & 1) != 0;
  }
  if (!all_huge) (void)madvise(begin, static_cast<size_t>(bytes), MADV_COLLAPSE);
}

absl::Status PoolMemory::TakePages(int64_t offset_bytes, int64_t bytes) const {
  uint8_t* const begin = data_ + offset_bytes;
  if (huge_pages_ == HugePages::kAuto) TakeHugePages(begin, bytes);
  int error = Populate(begin, bytes);
  if (error == EINVAL) error = AllocateAndTouch(fd_.get(), begin, offset_bytes, bytes);
  if (error == 0) return absl::OkStatus();
  return HostMemoryError("taking pages", bytes, error);
}

void PoolMemory::DropPages() const {
  if (is_file_) return;
  (void)madvise(data_, static_cast<size_t>(size_bytes_), MADV_REMOVE);
}

int64_t PoolMemory::HugeBytes() const {
  // The kernel walks the page tables of the whole process for it: not for every call of stats.
  std::ifstream file("/proc/self/smaps");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto begin = reinterpret_cast<uint64_t>(data_);
  return HugeBytesInSmaps(text, begin, begin + static_cast<uint64_t>(size_bytes_));
}

int64_t HugeBytesInSmaps(const std::string& smaps, uint64_t begin, uint64_t end) {
  int64_t huge_bytes = 0;
  int64_t overlap_bytes = 0;  // of the mapping whose lines these are
  for (absl::string_view line : absl::StrSplit(smaps, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 2) continue;
    const std::vector<absl::string_view> range = absl::StrSplit(words[0], '-');
    uint64_t from = 0, to = 0;
    if (range.size() == 2 && absl::SimpleHexAtoi(range[0], &from) &&
        absl::SimpleHexAtoi(range[1], &to)) {
      const uint64_t low = std::max(from, begin), high = std::min(to, end);
      overlap_bytes = low < high ? static_cast<int64_t>(high - low) : 0;
      continue;
    }
    int64_t kib = 0;
    if (overlap_bytes == 0 || !absl::SimpleAtoi(words[1], &kib)) continue;
    if (words[0] == "ShmemPmdMapped:") huge_bytes += std::min(kib * 1024, overlap_bytes);
    if (words[0] == "KernelPageSize:" && kib * 1024 == kHugePageBytes) huge_bytes += overlap_bytes;
  }
  return huge_bytes;
}

}  // namespace kvtier
