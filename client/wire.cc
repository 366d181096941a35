#include "client/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/error.h"
#include "proto/support/status.h"

namespace kvtier::client {
namespace {

constexpr size_t kAnswerBytesMax = 512;
// The API passes one descriptor at a time; more are closed.
constexpr int kDescriptorsMax = 4;
constexpr absl::Duration kConnectRetryDelay = absl::Milliseconds(10);

// Closes itself.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Of a call that failed with `error`: is it this process that has no more, or the socket that
// broke?
absl::Status SocketError(absl::string_view what, int error) {
  const std::string text = absl::StrCat("the descriptor socket: ", what, ": ", strerror(error));
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED", text,
                       {{"limit", "memory and descriptors of this process"}});
    default:
      return absl::UnavailableError(text);
  }
}

absl::StatusOr<Socket> ConnectTo(const std::string& path, absl::Time deadline) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::UnavailableError(absl::StrCat("'", path, "': no path of a socket"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return SocketError("socket", errno);
  while (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    // EAGAIN: more workers connect at this moment than the daemon has accepted.
    if ((error != EAGAIN && error != EINTR) || absl::Now() >= deadline) {
      return SocketError(absl::StrCat("connecting to ", path), error);
    }
    if (error == EAGAIN) absl::SleepFor(kConnectRetryDelay);
  }
  return socket;
}

// Waits until `fd` has something to read. DEADLINE_EXCEEDED after `deadline`.
absl::Status WaitReadable(int fd, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    pollfd poll_fd = {.fd = fd, .events = POLLIN};
    const auto timeout =
        static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, INT32_MAX));
    const int ready = poll(&poll_fd, 1, timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SocketError("poll", errno);
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no descriptor came");
  }
}

// The descriptors that came with `header`.
std::vector<int> DescriptorsOf(msghdr* header) {
  std::vector<int> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.push_back(fd);
    }
  }
  return fds;
}

// What the daemon says in place of a descriptor: a text, or a google.rpc.Code (int32, little
// endian) and a text. No text begins like a code.
absl::Status RefusalOf(absl::string_view answer) {
  absl::StatusCode code = absl::StatusCode::kNotFound;
  if (answer.size() >= 4 && answer[0] > 0 && answer[0] <= 16 &&
      answer.substr(1, 3) == absl::string_view("\0\0\0", 3)) {
    code = static_cast<absl::StatusCode>(answer[0]);
    answer.remove_prefix(4);
  }
  if (answer.empty()) answer = "it is not known, was used before, or is another user's";
  return MakeError(
      code, code == absl::StatusCode::kNotFound ? "SESSION_UNKNOWN" : "",
      absl::StrCat("the daemon gave no descriptor for a token: ", absl::CHexEscape(answer)));
}

absl::StatusOr<int> Receive(const Socket& socket) {
  char text[kAnswerBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  iovec part = {.iov_base = text, .iov_len = sizeof(text)};
  msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  ssize_t size = -1;
  do {
    size = recvmsg(socket.fd(), &header, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return SocketError("recvmsg", errno);
  const std::vector<int> fds = DescriptorsOf(&header);
  for (size_t i = 1; i < fds.size(); ++i) close(fds[i]);
  if (!fds.empty()) return fds.front();
  if (size == 0) return absl::UnavailableError("the daemon closed the descriptor socket");
  // The kernel keeps a descriptor back that has no place here, and says so in this way.
  if ((header.msg_flags & MSG_CTRUNC) != 0) return SocketError("recvmsg", EMFILE);
  return RefusalOf(absl::string_view(text, size));
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  const DecodedStatus decoded = kvtier::FromGrpcStatus(status);
  if (absl::IsCancelled(decoded.status) && decoded.details.reason.empty()) {
    return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     absl::StrCat("the daemon stops and did not begin the call (",
                                  decoded.status.message(), ")"));
  }
  return MakeError(decoded.status.code(), decoded.details.reason, decoded.status.message(),
                   decoded.details.metadata, decoded.details.retry_delay);
}

absl::StatusOr<int> RedeemAt(const std::vector<std::string>& paths, const std::string& token,
                             absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::string> refusals;
  for (const std::string& path : paths) {
    absl::StatusOr<Socket> socket = ConnectTo(path, deadline);
    // Another path would not help.
    if (absl::IsResourceExhausted(socket.status())) return socket.status();
    if (!socket.ok()) {
      refusals.emplace_back(socket.status().message());
      continue;
    }
    while (send(socket->fd(), token.data(), token.size(), MSG_NOSIGNAL) < 0) {
      if (errno != EINTR) return SocketError(absl::StrCat("sending to ", path), errno);
    }
    absl::Status ready = WaitReadable(socket->fd(), deadline);
    if (absl::IsDeadlineExceeded(ready)) {
      return absl::DeadlineExceededError(absl::StrCat("no descriptor came from ", path, " within ",
                                                      absl::FormatDuration(timeout)));
    }
    if (!ready.ok()) return ready;
    return Receive(*socket);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot connect to the descriptor socket: ", absl::StrJoin(refusals, "; "),
                   ". If the daemon's folder has another path here, name the socket in "
                   "fd_socket_path"));
}

}  // namespace kvtier::client
