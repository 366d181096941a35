#include "server/service/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/service/server.h"

namespace kvtier {
namespace {

absl::Status PathError(const std::string& path, absl::string_view what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "FIELD_INVALID",
                   absl::StrCat("socket ", path, ": ", what),
                   {{"field", "socket"}, {"value", path}});
}

}  // namespace

absl::StatusOr<std::string> CleanSocketPath(absl::string_view path) {
  path = absl::StripAsciiWhitespace(path);
  if (!absl::ConsumePrefix(&path, "unix://")) absl::ConsumePrefix(&path, "unix:");
  if (path.empty() || path.size() > kSocketPathBytesMax || FdSocketPathOf(path).empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
                     absl::StrCat("socket path of ", path.size(), " bytes: a Unix socket takes 1..",
                                  kSocketPathBytesMax),
                     {{"field", "socket"},
                      {"value", absl::StrCat(path.size())},
                      {"limit", absl::StrCat(kSocketPathBytesMax)}});
  }
  return std::string(path);
}

std::string FdSocketPathOf(absl::string_view path) {
  constexpr absl::string_view kSuffix = ".fd";
  // Where the whole name has no room, the end of the file's name makes some.
  const size_t end = std::min(path.size(), kSocketPathBytesMax - kSuffix.size());
  const absl::string_view stem = path.substr(0, end);
  if (stem.empty() || stem.back() == '/' || stem.rfind('/') != path.rfind('/')) return "";
  return absl::StrCat(stem, kSuffix);
}

absl::StatusOr<UniqueFd> LockSocketPath(const std::string& path) {
  const std::string lock_path = path + ".lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    return PathError(path, absl::StrCat("cannot open ", lock_path, ": ", strerror(errno),
                                        "; the folder must exist and be writable for uid ",
                                        geteuid()));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return PathError(path, absl::StrCat("flock: ", strerror(errno)));
    return MakeError(absl::StatusCode::kAlreadyExists, "ID_CONFLICT",
                     absl::StrCat("socket ", path, " is in use by another daemon"),
                     {{"field", "socket"}, {"value", path}});
  }
  struct stat there = {};
  if (lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
    return PathError(path, "there is something else at this path; it was left as it is");
  }
  return lock;
}

absl::Status SetSocketAccess(const std::string& path, int mode, int gid) {
  if (gid >= 0 && chown(path.c_str(), static_cast<uid_t>(-1), static_cast<gid_t>(gid)) != 0) {
    return PathError(path, absl::StrCat("chown to group ", gid, ": ", strerror(errno)));
  }
  if (chmod(path.c_str(), static_cast<mode_t>(mode)) != 0) {
    return PathError(path, absl::StrCat("chmod: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace kvtier
