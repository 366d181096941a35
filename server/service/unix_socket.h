// The files of the daemon's Unix sockets: paths, lock, creation with the right owner and mode.
//
// Errors are for whoever starts the daemon: INVALID_ARGUMENT for a path that can never be one,
// FAILED_PRECONDITION for what is in the way, with path and errno text, ALREADY_EXISTS where
// another process serves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// `path` without "unix:" or "unix://" in front and white space at its ends (an environment
// variable read from a file ends with a line feed). At most 107 bytes.
absl::StatusOr<std::string> CleanSocketPath(absl::string_view path);

// Where the descriptor socket of `socket_path` lies: "<socket_path>.fd" or, where that is too
// long for a socket, a short name of its own in the same folder. Workers are told.
absl::StatusOr<std::string> FdSocketPathOf(const std::string& socket_path);

// Who may connect.
struct SocketAccess {
  int32_t mode = 0660;  // whatever the umask
  int32_t gid = -1;     // -1: the process's group
  bool allow_world_writable = false;
};
absl::Status CheckSocketAccess(const SocketAccess& access);

// Holds "<socket_path>.lock", for as long as the process may own the socket. The kernel lets go
// of it when the process dies, however that happens.
class SocketLock {
 public:
  static absl::StatusOr<SocketLock> Take(const std::string& socket_path);

  SocketLock(SocketLock&&) = default;
  SocketLock& operator=(SocketLock&&) = delete;
  // Removes the file.
  ~SocketLock();

 private:
  SocketLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

// A listening socket and its file, which goes with it.
class UnixListener {
 public:
  // `type`: SOCK_STREAM or SOCK_SEQPACKET. The caller holds the lock, so that a socket at `path`
  // that nobody answers at is stale, and replaced; anything else there stays untouched. The file
  // is at no moment open to more than `access` says.
  static absl::StatusOr<UnixListener> Listen(const std::string& path, int type,
                                             const SocketAccess& access);

  UnixListener(UnixListener&&) = default;
  UnixListener& operator=(UnixListener&&) = delete;
  // Removes the file, if it still is this socket's.
  ~UnixListener();

  int fd() const { return fd_.get(); }

 private:
  UnixListener(std::string path, UniqueFd fd, dev_t device, ino_t inode)
      : path_(std::move(path)), fd_(std::move(fd)), device_(device), inode_(inode) {}

  std::string path_;
  UniqueFd fd_;  // non-blocking
  dev_t device_;
  ino_t inode_;
};

}  // namespace kvtier
