#include "server/host_pool/pool_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Without its name: workers see this one.
absl::Status FileError(int64_t bytes, absl::string_view operation, int error) {
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   absl::StrCat("a file of ", bytes, " bytes in the pool folder: ", operation,
                                " failed: ", strerror(error)),
                   {{"requested_bytes", absl::StrCat(bytes)}, {"limit", "host memory"}});
}

}  // namespace

absl::Status CannotRead(absl::string_view what, int error) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENXIO:
    case EACCES:
    case EPERM:
      return absl::DataLossError(text);
    default:
      return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                       absl::StrCat("in the pool folder: ", text,
                                    "; nothing was dropped, start again when there is more"),
                       {{"limit", "descriptors and memory of the system"}});
  }
}

absl::Status CheckOwnFile(int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return CannotRead("fstat", errno);
  if (!S_ISREG(file.st_mode) || file.st_nlink != 1) {
    return absl::DataLossError("it is no regular file with one name");
  }
  if (file.st_uid != geteuid() || (file.st_mode & 0077) != 0) {
    return absl::DataLossError(absl::StrCat("it is user ", file.st_uid,
                                            "'s, or its mode lets others in: not this user's "
                                            "alone"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PoolFile> PoolFile::Create(const FolderView& folder, const std::string& name,
                                          int64_t bytes) {
  PoolFile file;
  file.folder_ = folder;
  file.name_ = name;
  file.size_bytes_ = (bytes + folder.page_bytes - 1) / folder.page_bytes * folder.page_bytes;
  const std::string passing = file.PresentName();
  const UniqueFd fd(
      openat(folder.fd, passing.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FileError(bytes, "open", errno);
  const absl::Status made = [&]() -> absl::Status {
    if (ftruncate(fd.get(), file.size_bytes_) != 0) {
      return FileError(bytes, "ftruncate", errno);
    }
    while (fallocate(fd.get(), 0, 0, file.size_bytes_) != 0) {
      if (errno != EINTR) return FileError(bytes, "fallocate", errno);
    }
    return file.Map(fd.get());
  }();
  if (made.ok()) return file;
  unlinkat(folder.fd, passing.c_str(), 0);
  return made;
}

absl::StatusOr<PoolFile> PoolFile::Open(const FolderView& folder, const std::string& name) {
  const UniqueFd fd(openat(folder.fd, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid() && errno == ENOENT) return absl::NotFoundError("it is not there");
  if (!fd.valid()) return CannotRead(absl::StrCat(name, ": open"), errno);
  KVTIER_RETURN_IF_ERROR(CheckOwnFile(fd.get()));
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) return CannotRead(absl::StrCat(name, ": fstat"), errno);
  if (status.st_size <= 0 || status.st_size % folder.page_bytes != 0) {
    return absl::DataLossError(absl::StrCat("it has ", status.st_size, " bytes"));
  }
  PoolFile file;
  file.folder_ = folder;
  file.name_ = name;
  file.committed_ = true;
  file.size_bytes_ = status.st_size;
  KVTIER_RETURN_IF_ERROR(file.Map(fd.get()));
  return file;
}

absl::Status PoolFile::Map(int fd) {
  void* data =
      mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return FileError(size_bytes_, "mmap", errno);
  data_ = static_cast<uint8_t*>(data);
  return absl::OkStatus();
}

absl::Status PoolFile::Commit() {
  const std::string passing = PresentName();
  if (renameat(folder_.fd, passing.c_str(), folder_.fd, name_.c_str()) != 0) {
    return FileError(size_bytes_, "rename", errno);
  }
  committed_ = true;
  return absl::OkStatus();
}

void PoolFile::Remove() const {
  if (unlinkat(folder_.fd, PresentName().c_str(), 0) == 0 || data_ == nullptr) return;
  std::memset(data_, 0, sizeof(int64_t));
}

absl::StatusOr<UniqueFd> PoolFile::OpenReadOnly() const {
  UniqueFd fd(openat(folder_.fd, PresentName().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return FileError(size_bytes_, "open", errno);
  return fd;
}

PoolFile::PoolFile(PoolFile&& other) noexcept { *this = std::move(other); }

PoolFile& PoolFile::operator=(PoolFile&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(name_, other.name_);
  std::swap(committed_, other.committed_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

PoolFile::~PoolFile() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
}

}  // namespace kvtier
