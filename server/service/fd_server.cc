#include "server/service/fd_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

// Peers that are connected at a time; the oldest makes room for a new one.
constexpr size_t kPeersMax = 128;
constexpr size_t kTokenBytesMax = 256;

absl::Status SocketError(const std::string& path, const char* what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "FIELD_INVALID",
                   absl::StrCat("descriptor socket ", path, ": ", what, ": ", strerror(errno)),
                   {{"field", "socket"}, {"value", path}});
}

Peer PeerOf(int fd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return {.pid = credentials.pid, .uid = static_cast<int32_t>(credentials.uid)};
}

// One packet of text, with `fd` if it is valid.
void Answer(int peer, const std::string& text, const UniqueFd& fd) {
  iovec part = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd.valid()) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = fd.get();
    std::memcpy(CMSG_DATA(rights), &number, sizeof(number));
  }
  // A peer that is gone or does not read gets nothing: nobody waits for it.
  (void)sendmsg(peer, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdServer>> FdServer::Start(const std::string& path, int mode,
                                                          Redeem redeem) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return SocketError(path, "bind");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return SocketError(path, "socket");
  struct stat old = {};
  if (lstat(path.c_str(), &old) == 0 && S_ISSOCK(old.st_mode)) (void)unlink(path.c_str());
  // The mode holds from the first moment: fchmod on the socket before bind sets the file's.
  if (fchmod(listener.get(), static_cast<mode_t>(mode)) != 0) return SocketError(path, "fchmod");
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError(path, "bind");
  }
  if (chmod(path.c_str(), static_cast<mode_t>(mode)) != 0) return SocketError(path, "chmod");
  if (listen(listener.get(), 64) != 0) return SocketError(path, "listen");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SocketError(path, "eventfd");
  return std::unique_ptr<FdServer>(
      new FdServer(path, std::move(listener), std::move(wake), std::move(redeem)));
}

FdServer::FdServer(std::string path, UniqueFd listener, UniqueFd wake, Redeem redeem)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      redeem_(std::move(redeem)),
      thread_([this] { Loop(); }) {}

FdServer::~FdServer() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_.join();
  (void)unlink(path_.c_str());
}

void FdServer::Loop() {
  std::vector<UniqueFd> peers;
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign({{.fd = wake_.get(), .events = POLLIN}, {.fd = listener_.get(), .events = POLLIN}});
    for (const UniqueFd& peer : peers) polled.push_back({.fd = peer.get(), .events = POLLIN});
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    std::vector<UniqueFd> remaining;
    for (size_t i = 0; i < peers.size(); ++i) {
      if (polled[i + 2].revents != 0 && !Serve(peers[i].get())) continue;
      remaining.push_back(std::move(peers[i]));
    }
    peers = std::move(remaining);
    if (polled[1].revents != 0) Accept(&peers);
  }
}

void FdServer::Accept(std::vector<UniqueFd>* peers) {
  for (;;) {
    UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer.valid()) {
      // Out of descriptors: the oldest peers make room, so that the listener does not spin.
      if ((errno == EMFILE || errno == ENFILE) && !peers->empty()) {
        peers->erase(peers->begin());
        continue;
      }
      return;
    }
    if (peers->size() >= kPeersMax) peers->erase(peers->begin());
    peers->push_back(std::move(peer));
  }
}

bool FdServer::Serve(int peer) {
  char token[kTokenBytesMax + 1];
  const ssize_t size = recv(peer, token, sizeof(token), MSG_DONTWAIT);
  if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
  absl::StatusOr<UniqueFd> fd =
      redeem_(absl::string_view(token, static_cast<size_t>(size)), PeerOf(peer));
  if (fd.ok()) {
    Answer(peer, "ok", *fd);
  } else {
    Answer(peer, std::string(fd.status().message()), UniqueFd());
  }
  return true;
}

}  // namespace kvtier
