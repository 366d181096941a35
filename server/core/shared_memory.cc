#include "server/core/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/core_dump.h"
#include "server/core/error.h"
#include "server/core/memory_headroom.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// The kernel takes 249 bytes of a memfd's name; it is for people who read /proc.
constexpr size_t kMemfdNameBytesMax = 200;
// Less than this is not worth reading the limits of the machine and its container.
constexpr int64_t kHeadroomCheckBytesMin = int64_t{1} << 20;

absl::Status MemoryError(absl::string_view name, int64_t bytes, absl::string_view operation,
                         int error) {
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   absl::StrCat("shared memory '", name, "' of ", bytes, " bytes: ", operation,
                                " failed: ", strerror(error)),
                   {{"requested_bytes", absl::StrCat(bytes)}, {"limit", "host memory"}});
}

// Takes the pages now. ftruncate succeeds however little memory there is, and the first access
// to a page that cannot be had is a SIGBUS, in whichever process makes it.
int ReservePages(int fd, int64_t bytes) {
  while (fallocate(fd, 0, 0, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

int UniqueFd::Release() { return std::exchange(fd_, -1); }

void UniqueFd::Reset() {
  // Not repeated on EINTR: Linux has closed it by then, and the number may be someone else's.
  if (fd_ >= 0) close(Release());
}

UniqueFd UniqueFd::Duplicate() const { return UniqueFd(fcntl(fd_, F_DUPFD_CLOEXEC, 0)); }

absl::StatusOr<SharedMemory> SharedMemory::Create(absl::string_view name, int64_t bytes,
                                                  bool read_only_for_others) {
  if (bytes <= 0) return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1");
  if (bytes >= kHeadroomCheckBytesMin) {
    KVTIER_RETURN_IF_ERROR(CheckMemoryHeadroom(ReadMemoryHeadroom(), name, bytes));
  }
  const std::string file_name(name.substr(0, kMemfdNameBytesMax));
  UniqueFd fd(memfd_create(file_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MemoryError(name, bytes, "memfd_create", errno);
  if (ftruncate(fd.get(), bytes) != 0) return MemoryError(name, bytes, "ftruncate", errno);
  if (const int error = ReservePages(fd.get(), bytes); error != 0) {
    return MemoryError(name, bytes, "fallocate", error);
  }
  void* data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return MemoryError(name, bytes, "mmap", errno);
  SharedMemory memory(std::move(fd), static_cast<uint8_t*>(data), bytes);
  LeaveOutOfCores(memory.data(), static_cast<size_t>(bytes));  // hot buffers of a CPU have rows

  // FUTURE_WRITE leaves our own mapping, made above, as it is.
  int seals = F_SEAL_GROW | F_SEAL_SHRINK;
  if (read_only_for_others) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(memory.fd().get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) {
    return MemoryError(name, bytes, "F_ADD_SEALS", errno);
  }
  return memory;
}

SharedMemory::SharedMemory(UniqueFd fd, uint8_t* data, int64_t bytes)
    : fd_(std::move(fd)), data_(data), size_bytes_(bytes) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() { Unmap(); }

void SharedMemory::Unmap() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
  data_ = nullptr;
}

}  // namespace kvtier
