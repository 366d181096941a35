#include "server/service/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/support/wire_limits.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Connections that wait for accept(): a node's workers may all start at once, and somebody who
// floods the daemon must leave room for them. The system has a limit of its own, mostly this one.
constexpr int kBacklog = 4096;
constexpr int kLockTriesMax = 100;

static_assert(sizeof(sockaddr_un{}.sun_path) - 1 == kSocketPathBytesMax);

absl::Status Blocked(absl::string_view what, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", why));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Why a file cannot be made at `path`, with what an operator needs to change it.
absl::Status CannotCreate(const std::string& path, int error) {
  const std::string folder = FolderOf(path);
  const std::string what = absl::StrCat("cannot create ", path);
  struct stat file = {};
  if (stat(folder.c_str(), &file) != 0) {
    return Blocked(what, absl::StrCat("its folder ", folder, ": ", strerror(errno),
                                      "; create the folder, or give another --socket"));
  }
  if (!S_ISDIR(file.st_mode)) return Blocked(what, absl::StrCat(folder, " is no folder"));
  return Blocked(what, absl::StrFormat("%s; uid %d, gid %d in the folder %s of owner %d:%d, mode "
                                       "%#o",
                                       strerror(error), geteuid(), getegid(), folder, file.st_uid,
                                       file.st_gid, file.st_mode & 07777));
}

absl::Status InUse(const std::string& path, absl::string_view by) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, " is in use by ", by, "; stop it first, or give another --socket"));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewSocket(int type) {
  return UniqueFd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Does anybody listen at `path`?
absl::StatusOr<bool> IsAlive(const std::string& path, int type) {
  const UniqueFd probe = NewSocket(type);
  if (!probe.valid()) return Blocked("cannot create a socket", strerror(errno));
  const sockaddr_un address = AddressOf(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  return errno != ECONNREFUSED && errno != ENOENT;
}

// Makes room at `path`, by removing a stale socket and nothing else.
absl::Status ClearPath(const std::string& path, int type) {
  struct stat file = {};
  if (lstat(path.c_str(), &file) != 0) return absl::OkStatus();  // bind says what is wrong
  if (!S_ISSOCK(file.st_mode)) {
    return Blocked(absl::StrCat("cannot create the socket ", path),
                   S_ISDIR(file.st_mode)
                       ? "it is a folder (Is a directory)"
                       : "another file is there (File exists); it was not touched");
  }
  KVTIER_ASSIGN_OR_RETURN(const bool is_alive, IsAlive(path, type));
  if (is_alive) return InUse(path, "a process that listens there");
  if (unlink(path.c_str()) != 0) {
    return Blocked(absl::StrCat("cannot remove the stale socket ", path), strerror(errno));
  }
  return absl::OkStatus();
}

// Gives the file its group and mode, in this order: a group that the file is not meant for never
// has the rights of the one it is meant for. Through a descriptor of the file itself: its name may
// lead elsewhere by now, if somebody else may write the folder.
absl::Status SetAccess(const UniqueFd& file, const std::string& path, const SocketAccess& access) {
  if (access.gid >= 0 && fchownat(file.get(), "", static_cast<uid_t>(-1),
                                  static_cast<gid_t>(access.gid), AT_EMPTY_PATH) != 0) {
    return Blocked(absl::StrCat("cannot give ", path, " to group ", access.gid), strerror(errno));
  }
  // There is no fchmod of a descriptor that was opened for nothing but this.
  const std::string itself = absl::StrCat("/proc/self/fd/", file.get());
  if (chmod(itself.c_str(), static_cast<mode_t>(access.mode)) != 0) {
    return Blocked(absl::StrFormat("cannot give %s mode %#o", path, access.mode), strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CleanSocketPath(absl::string_view path) {
  path = absl::StripAsciiWhitespace(path);
  if (!absl::ConsumePrefix(&path, "unix://")) absl::ConsumePrefix(&path, "unix:");
  if (path.empty()) return absl::InvalidArgumentError("the socket path is empty");
  if (std::any_of(path.begin(), path.end(),
                  [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path \"", absl::CHexEscape(path), "\" has control characters"));
  }
  if (path.size() > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path is ", path.size(),
                                                   " bytes long; the system's limit is ",
                                                   kSocketPathBytesMax, " bytes: ", path));
  }
  return std::string(path);
}

absl::StatusOr<std::string> FdSocketPathOf(const std::string& socket_path) {
  const std::string plain = absl::StrCat(socket_path, wire::kFdSocketSuffix);
  if (plain.size() <= kSocketPathBytesMax) return plain;
  // FNV-1a: the same name for the same path, another one for its neighbours.
  uint32_t hash = 2166136261u;
  for (const char c : socket_path) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  const size_t folder_bytes = socket_path.rfind('/') + 1;  // 0 where there is none
  const std::string small = absl::StrCat(socket_path.substr(0, folder_bytes), ".",
                                         absl::Hex(hash, absl::kZeroPad8), wire::kFdSocketSuffix);
  if (small.size() <= kSocketPathBytesMax) return small;
  return absl::InvalidArgumentError(absl::StrCat(
      "no room for the descriptor socket beside ", socket_path, ": the path of its folder has ",
      folder_bytes, " bytes, and a socket's path at most ", kSocketPathBytesMax));
}

absl::Status CheckSocketAccess(const SocketAccess& access) {
  if (access.mode < 0 || access.mode > 0777) {
    return absl::InvalidArgumentError(
        absl::StrFormat("socket mode %#o is none; it must be 0..0777", access.mode));
  }
  if ((access.mode & 0002) != 0 && !access.allow_world_writable) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "socket mode %#o lets every user of the machine take memory and read caches; give a group "
        "with --socket_gid, or allow it with --allow_world_writable_socket",
        access.mode));
  }
  return absl::OkStatus();
}

absl::StatusOr<SocketLock> SocketLock::Take(const std::string& socket_path) {
  const std::string path = absl::StrCat(socket_path, ".lock");
  for (int i = 0; i < kLockTriesMax; ++i) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return CannotCreate(path, errno);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return InUse(socket_path, "another kvtierd");
      return Blocked(absl::StrCat("cannot lock ", path), strerror(errno));
    }
    // A daemon that ended between our open and lock has removed the file: then the lock is of a
    // file that nobody else will find.
    struct stat locked = {}, named = {};
    if (fstat(fd.get(), &locked) == 0 && stat(path.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino && locked.st_dev == named.st_dev) {
      return SocketLock(path, std::move(fd));
    }
  }
  return Blocked(absl::StrCat("cannot lock ", path), "somebody removes it again and again");
}

SocketLock::~SocketLock() {
  // While the lock is held, so that nobody locks a file that is about to go.
  if (fd_.valid()) unlink(path_.c_str());
}

absl::StatusOr<UnixListener> UnixListener::Listen(const std::string& path, int type,
                                                  const SocketAccess& access) {
  KVTIER_RETURN_IF_ERROR(CheckSocketAccess(access));
  KVTIER_RETURN_IF_ERROR(ClearPath(path, type));
  UniqueFd fd = NewSocket(type);
  if (!fd.valid()) return Blocked("cannot create a socket", strerror(errno));
  // The file that bind() makes gets the mode of the socket, less the umask: so it is never wider
  // than this, and nobody can connect before listen().
  if (fchmod(fd.get(), 0600) != 0) return Blocked("cannot set a socket's mode", strerror(errno));
  const sockaddr_un address = AddressOf(path);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return CannotCreate(path, errno);
  }
  const UniqueFd file(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat made = {};
  if (!file.valid() || fstat(file.get(), &made) != 0 || !S_ISSOCK(made.st_mode)) {
    return Blocked(absl::StrCat("somebody else's file is at ", path), "the socket was replaced");
  }
  UnixListener listener(path, std::move(fd), made.st_dev, made.st_ino);
  KVTIER_RETURN_IF_ERROR(SetAccess(file, path, access));
  if (listen(listener.fd(), kBacklog) != 0) {
    return Blocked(absl::StrCat("cannot listen at ", path), strerror(errno));
  }
  return listener;
}

UnixListener::~UnixListener() {
  struct stat file = {};
  if (fd_.valid() && lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ &&
      file.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace kvtier
