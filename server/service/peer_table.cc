#include "server/service/peer_table.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace kvtier {
namespace {

// 0 if `fd` is not open.
ino_t InodeOf(int fd) {
  struct stat file = {};
  return fstat(fd, &file) == 0 ? file.st_ino : 0;
}

// Its group and its supplementary ones; the first alone where the kernel does not tell the others.
std::vector<int32_t> GroupsOf(int fd, gid_t gid) {
  std::vector<int32_t> gids = {static_cast<int32_t>(gid)};
  socklen_t bytes = 0;
  // The first call says how much room it takes.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes) == 0 || errno != ERANGE) {
    return gids;
  }
  std::vector<gid_t> others(bytes / sizeof(gid_t));
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, others.data(), &bytes) == 0) {
    for (const gid_t other : others) gids.push_back(static_cast<int32_t>(other));
  }
  return gids;
}

}  // namespace

Peer PeerOf(int fd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  // pid 0: a process outside of the daemon's PID namespace.
  return {.pid = credentials.pid > 0 ? credentials.pid : -1,
          .uid = static_cast<int32_t>(credentials.uid),
          .gids = GroupsOf(fd, credentials.gid)};
}

bool PeerTable::Add(int fd) {
  const Entry entry = {.peer = PeerOf(fd), .inode = InodeOf(fd)};
  MutexLock lock(&mutex_);
  // The number was given out anew, so that what is noted there has ended.
  entries_.erase(fd);
  if (entries_.size() >= connections_max_) DropEnded();
  if (entries_.size() >= connections_max_) return false;
  entries_.emplace(fd, entry);
  return true;
}

Peer PeerTable::Find(absl::string_view name) const {
  int fd = -1;
  if (!absl::ConsumePrefix(&name, kLocalPeerPrefix) || !absl::SimpleAtoi(name, &fd)) return {};
  MutexLock lock(&mutex_);
  const auto found = entries_.find(fd);
  return found == entries_.end() ? Peer() : found->second.peer;
}

void PeerTable::DropEnded() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto current = it++;
    if (InodeOf(current->first) != current->second.inode) entries_.erase(current);
  }
}

}  // namespace kvtier
