#include "server/host_pool/pool_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/random.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

constexpr char kRows[] = "rows";
constexpr char kPool[] = "pool";
constexpr char kCachePrefix[] = "cache-";
constexpr int64_t kManifestBytesMax = 1024;
constexpr int64_t kRunOffset = kManifestBytesMax;  // int64, in the pool's manifest file
constexpr int kPoolIdBytes = 16;

absl::Status FolderInvalid(const std::string& path, absl::string_view why) {
  return FieldInvalid("pool_path", path, "a folder of this user alone, on tmpfs or hugetlbfs", why);
}

absl::Status Mismatch(const std::string& path, absl::string_view field, absl::string_view value,
                      absl::string_view expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "LAYOUT_MISMATCH",
                   absl::StrCat("the pool in ", path, " has ", field, " ", value,
                                ", and this daemon wants ", expected,
                                ": start it as the last one was, or drop what is there with "
                                "--pool_mismatch=drop"),
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"expected", std::string(expected)}});
}

// Whatever else lies in the folder is somebody else's.
bool IsOurs(absl::string_view name) {
  return name == kRows || name == kPool || name == absl::StrCat(kPool, ".new") ||
         absl::StartsWith(name, kCachePrefix);
}

// Empty: the system says none.
absl::StatusOr<std::string> ReadMachineBootId(const std::string& system_root) {
  const std::string path = system_root + "/proc/sys/kernel/random/boot_id";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char id[64];
  const ssize_t size = file.valid() ? read(file.get(), id, sizeof(id)) : -1;
  if (size >= 0) {
    return std::string(absl::StripAsciiWhitespace({id, static_cast<size_t>(size)}));
  }
  const absl::Status error = CannotRead(path, errno);
  if (absl::IsDataLoss(error)) return std::string();
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PoolFolder>> PoolFolder::Open(const PoolFolderOptions& options) {
  std::unique_ptr<PoolFolder> folder(new PoolFolder(options));
  KVTIER_RETURN_IF_ERROR(folder->OpenFolder());
  KVTIER_RETURN_IF_ERROR(folder->OpenPool());
  absl::Status usable = folder->StartRun();
  if (usable.ok()) {
    KVTIER_ASSIGN_OR_RETURN(const bool all, folder->AdoptCaches());
    // Nobody knows where the lost cache's rows are, and a worker may still write them.
    if (!all && folder->EarlierRunsMapThePool()) {
      usable = absl::DataLossError("workers of an earlier daemon may write the lost cache");
    }
  }
  if (absl::IsDataLoss(usable)) usable = folder->StartAnew(usable.message());
  KVTIER_RETURN_IF_ERROR(usable);
  return folder;
}

absl::Status PoolFolder::StartAnew(absl::string_view why) {
  dropped_.push_back(absl::StrCat("the pool: ", why));
  kept_.clear();
  KVTIER_RETURN_IF_ERROR(RemoveAllFiles());
  KVTIER_ASSIGN_OR_RETURN(const std::string machine_boot_id,
                          ReadMachineBootId(options_.system_root));
  KVTIER_RETURN_IF_ERROR(MakePool(machine_boot_id));
  return StartRun();
}

absl::Status PoolFolder::OpenFolder() {
  const std::string& path = options_.path;
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return FolderInvalid(path, absl::StrCat("mkdir: ", strerror(errno)));
  }
  folder_ = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder_.valid()) return FolderInvalid(path, absl::StrCat("open: ", strerror(errno)));
  struct stat status = {};
  struct statfs system = {};
  if (fstat(folder_.get(), &status) != 0 || fstatfs(folder_.get(), &system) != 0) {
    return FolderInvalid(path, strerror(errno));
  }
  // Elsewhere the rows would be written to a disk, and be there after the machine has stopped.
  if (system.f_type != TMPFS_MAGIC && system.f_type != HUGETLBFS_MAGIC) {
    return FolderInvalid(path, "it lies on another kind of file system");
  }
  if (status.st_uid != geteuid() || (status.st_mode & 0077) != 0) {
    return FolderInvalid(path, absl::StrCat("it is user ", status.st_uid,
                                            "'s, and its mode lets "
                                            "others in; let the daemon make it"));
  }
  if (flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
    return FolderInvalid(path, "another daemon uses it");
  }
  view_ = {.fd = folder_.get(), .page_bytes = static_cast<int64_t>(system.f_bsize)};
  has_huge_pages_ = system.f_type == HUGETLBFS_MAGIC;
  if (view_.page_bytes > kPoolAlignmentBytes) {
    return FolderInvalid(path, "its pages are larger than 2 MiB");
  }
  return absl::OkStatus();
}

absl::Status PoolFolder::OpenPool() {
  KVTIER_ASSIGN_OR_RETURN(const std::string machine_boot_id,
                          ReadMachineBootId(options_.system_root));
  const absl::Status adopted = AdoptPool(machine_boot_id);
  if (adopted.ok() || absl::IsResourceExhausted(adopted)) return adopted;
  if (absl::IsFailedPrecondition(adopted) && !options_.drop_mismatch) return adopted;
  if (!absl::IsNotFound(adopted)) {
    dropped_.push_back(absl::StrCat("the pool: ", adopted.message()));
  }
  // Never shrunk or written over: whoever has the old files mapped keeps them.
  KVTIER_RETURN_IF_ERROR(RemoveAllFiles());
  return MakePool(machine_boot_id);
}

absl::Status PoolFolder::AdoptPool(const std::string& machine_boot_id) {
  KVTIER_ASSIGN_OR_RETURN(manifest_file_, PoolFile::Open(view_, kPool));
  const absl::StatusOr<PoolManifest> manifest =
      DecodePoolManifest({reinterpret_cast<const char*>(manifest_file_.data()), kManifestBytesMax});
  if (absl::IsFailedPrecondition(manifest.status())) {
    return Mismatch(options_.path, "format", manifest.status().message(), "its own");
  }
  KVTIER_RETURN_IF_ERROR(manifest.status());
  if (machine_boot_id.empty() || manifest->machine_boot_id != machine_boot_id) {
    return absl::DataLossError("the machine was started since");
  }
  if (manifest->pool_bytes != options_.pool_bytes) {
    return Mismatch(options_.path, "pool_bytes", absl::StrCat(manifest->pool_bytes),
                    absl::StrCat(options_.pool_bytes));
  }
  rows_ = UniqueFd(openat(view_.fd, kRows, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!rows_.valid()) return CannotRead("rows", errno);
  KVTIER_RETURN_IF_ERROR(CheckOwnFile(rows_.get()));
  struct stat status = {};
  if (fstat(rows_.get(), &status) != 0) return CannotRead("rows: fstat", errno);
  if (status.st_size != options_.pool_bytes) {
    return absl::DataLossError(absl::StrCat("its rows have ", status.st_size, " bytes by now"));
  }
  pool_id_ = manifest->pool_id;
  constexpr int64_t kBytesOfBlock = 512;  // whatever the file system's are
  resident_bytes_ = std::min<int64_t>(status.st_blocks * kBytesOfBlock, options_.pool_bytes);
  return absl::OkStatus();
}

absl::Status PoolFolder::MakePool(const std::string& machine_boot_id) {
  manifest_file_ = PoolFile();
  resident_bytes_ = 0;
  const auto error = [](absl::string_view what) {
    return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                     absl::StrCat("rows in the pool folder: ", what, ": ", strerror(errno)),
                     {{"limit", "host memory"}});
  };
  rows_ =
      UniqueFd(openat(view_.fd, kRows, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!rows_.valid()) return error("open");
  if (ftruncate(rows_.get(), options_.pool_bytes) != 0) return error("ftruncate");
  rows_are_new_ = true;
  pool_id_ = RandomHex(kPoolIdBytes);
  KVTIER_ASSIGN_OR_RETURN(manifest_file_, PoolFile::Create(view_, kPool, 2 * kManifestBytesMax));
  const std::string bytes = EncodeManifest(PoolManifest{
      .machine_boot_id = machine_boot_id, .pool_id = pool_id_, .pool_bytes = options_.pool_bytes});
  std::memcpy(manifest_file_.data(), bytes.data(), bytes.size());
  return manifest_file_.Commit();
}

// Each run of a daemon locks a byte of its own in the rows, through the descriptor that its workers
// get. The lock belongs to the open file: it ends when the last descriptor and the last mapping of
// all processes that got it are gone, however they ended.
absl::Status PoolFolder::StartRun() {
  std::memcpy(&run_, manifest_file_.data() + kRunOffset, sizeof(run_));
  ++run_;
  std::memcpy(manifest_file_.data() + kRunOffset, &run_, sizeof(run_));
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = run_;
  lock.l_len = 1;
  probe_ = UniqueFd(openat(view_.fd, kRows, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (probe_.valid() && fcntl(rows_.get(), F_OFD_SETLK, &lock) == 0) return absl::OkStatus();
  // Workers have the descriptor of an earlier run: one of them took more than that run did. It must
  // not keep this one from starting, and the rows would never be known to be free.
  if (probe_.valid() && (errno == EAGAIN || errno == EACCES)) {
    return absl::DataLossError("a worker of an earlier daemon has locked its rows");
  }
  return FolderInvalid(options_.path, absl::StrCat("its rows cannot be locked: ", strerror(errno)));
}

bool PoolFolder::EarlierRunsMapThePool() const {
  if (run_ <= 1) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 1;
  lock.l_len = run_ - 1;
  // Who cannot be asked is taken for alive.
  return fcntl(probe_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

absl::StatusOr<bool> PoolFolder::AdoptCaches() {
  bool all = true;
  KVTIER_ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames());
  for (const std::string& name : names) {
    if (name == kRows || name == kPool) continue;
    absl::StatusOr<CacheFile> file = absl::DataLossError("it was not finished");
    if (absl::StartsWith(name, kCachePrefix) && !absl::EndsWith(name, ".new")) {
      file = CacheFile::Open(view_, name);
    }
    if (file.ok() && file->manifest().pool_id != pool_id_) {
      file = absl::DataLossError("it is another pool's");
    }
    if (file.ok()) {
      kept_.push_back(*std::move(file));
      continue;
    }
    if (absl::IsResourceExhausted(file.status())) return file.status();
    // A file without its name was never anybody's.
    all = all && absl::EndsWith(name, ".new");
    dropped_.push_back(absl::StrCat("file ", name, ": ", file.status().message()));
    unlinkat(view_.fd, name.c_str(), 0);
  }
  return all;
}

absl::StatusOr<CacheFile> PoolFolder::NewCacheFile(CacheManifest manifest) const {
  manifest.pool_id = pool_id_;
  return CacheFile::Create(view_, absl::StrCat(kCachePrefix, RandomHex(8)), manifest);
}

// A cache that is not seen would be written over, so that one missing name is an error of all.
absl::StatusOr<std::vector<std::string>> PoolFolder::FileNames() const {
  // A descriptor of its own: readdir moves its place.
  UniqueFd fd(openat(view_.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const folder = fd.valid() ? fdopendir(fd.get()) : nullptr;
  if (folder == nullptr) return CannotRead("list of its files", errno);
  fd.Release();  // the DIR's
  const absl::Cleanup close = [folder] { closedir(folder); };
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(folder);
    if (entry == nullptr && errno != 0) return CannotRead("list of its files", errno);
    if (entry == nullptr) break;
    if (IsOurs(entry->d_name)) names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status PoolFolder::RemoveAllFiles() const {
  KVTIER_ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames());
  // The manifest first: without it nothing else counts. What cannot be removed is another pool's.
  unlinkat(view_.fd, kPool, 0);
  for (const std::string& name : names) unlinkat(view_.fd, name.c_str(), 0);
  return absl::OkStatus();
}

}  // namespace kvtier
