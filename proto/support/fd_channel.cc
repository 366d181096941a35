#include "proto/support/fd_channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/status.h"
#include "proto/support/wire_limits.h"

namespace kvtier {
namespace {

constexpr size_t kStatusBytes = sizeof(int32_t);
// The daemon sends one; room for a few more, so that a wrong peer's can be closed.
constexpr size_t kDescriptorsMax = 8;

absl::Status Broken(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("descriptor socket: ", what, ": ", strerror(errno)));
}

// Waits for `events` on `fd`, at least once looked at even if the deadline has passed.
absl::Status WaitFor(int fd, int16_t events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    pollfd entry = {.fd = fd, .events = events};
    // Rounded up: a rest of less than 1 ms must not become a busy loop.
    const int64_t milliseconds =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 0, 1 << 30);
    const int ready =
        poll(&entry, 1, left <= absl::ZeroDuration() ? 0 : static_cast<int>(milliseconds));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Broken("poll");
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError("descriptor socket: the daemon did not answer in time");
    }
  }
}

std::array<char, kStatusBytes> EncodeCode(int32_t code) {
  std::array<char, kStatusBytes> bytes{};
  for (size_t i = 0; i < kStatusBytes; ++i) {
    bytes[i] = static_cast<char>(static_cast<uint32_t>(code) >> (8 * i));
  }
  return bytes;
}

int32_t DecodeCode(const char* bytes) {
  uint32_t code = 0;
  for (size_t i = 0; i < kStatusBytes; ++i) {
    code |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  return static_cast<int32_t>(code);
}

// Takes every descriptor out of `header`.
std::vector<Descriptor> TakeDescriptors(msghdr* header) {
  std::vector<Descriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

absl::StatusOr<Descriptor> JudgeAnswer(absl::string_view answer, int flags,
                                       std::vector<Descriptor> descriptors) {
  if ((flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InternalError(
        "descriptor socket: the answer was cut off (is the process out of descriptors?)");
  }
  if (answer.size() < kStatusBytes) {
    return absl::InternalError(
        absl::StrCat("descriptor socket: an answer of ", answer.size(), " bytes"));
  }
  const int32_t code = DecodeCode(answer.data());
  if (code != static_cast<int32_t>(grpc::StatusCode::OK)) {
    return absl::Status(ToAbslCode(code), ToUtf8(std::string(answer.data() + kStatusBytes,
                                                             answer.size() - kStatusBytes)));
  }
  if (descriptors.size() != 1) {
    return absl::InternalError(absl::StrCat("descriptor socket: ", descriptors.size(),
                                            " descriptors in an answer that has one"));
  }
  return std::move(descriptors.front());
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Descriptor closed(std::exchange(fd_, other.Release()));
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Descriptor> ConnectFdSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no path of a socket: it has ",
                                                   path.size(), " bytes, and 1..",
                                                   sizeof(address.sun_path) - 1, " are possible"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Broken("socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  }
  return socket;
}

absl::StatusOr<Descriptor> RedeemFd(const Descriptor& socket, absl::string_view token,
                                    absl::Time deadline) {
  if (absl::Status status = WaitFor(socket.get(), POLLOUT, deadline); !status.ok()) return status;
  if (send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return Broken("send");
  }
  char text[kStatusBytes + wire::kFdMessageBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  for (;;) {
    if (absl::Status status = WaitFor(socket.get(), POLLIN, deadline); !status.ok()) return status;
    iovec part = {.iov_base = text, .iov_len = sizeof(text)};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size < 0) return Broken("recvmsg");
    // Taken before anything is judged, so that none leaks.
    std::vector<Descriptor> descriptors = TakeDescriptors(&header);
    if (size == 0) {
      return absl::UnavailableError("descriptor socket: the daemon closed the connection");
    }
    return JudgeAnswer(absl::string_view(text, static_cast<size_t>(size)), header.msg_flags,
                       std::move(descriptors));
  }
}

absl::StatusOr<std::string> ReceiveToken(int socket) {
  char bytes[wire::kFdTokenBytesMax];
  // No control buffer: the kernel drops descriptors that the peer sends along. MSG_TRUNC: the
  // packet's real size.
  const ssize_t size = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_TRUNC);
  if (size < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::ResourceExhaustedError("no token yet");
    return Broken("recv");
  }
  // A SOCK_SEQPACKET peer that closed reads as an empty packet.
  if (size == 0) return absl::UnavailableError("descriptor socket: the peer closed it");
  if (static_cast<size_t>(size) > sizeof(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of ", size, " bytes; it has at most ", wire::kFdTokenBytesMax));
  }
  return std::string(bytes, static_cast<size_t>(size));
}

absl::Status SendAnswer(int socket, const absl::Status& status, int fd) {
  std::array<char, kStatusBytes> code = EncodeCode(static_cast<int32_t>(ToGrpcCode(status.code())));
  std::string text = ToUtf8(std::string(status.message()).substr(0, wire::kFdMessageBytesMax));
  iovec parts[2] = {{.iov_base = code.data(), .iov_len = code.size()},
                    {.iov_base = text.data(), .iov_len = text.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  if (status.ok()) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return Broken("sendmsg");
  return absl::OkStatus();
}

}  // namespace kvtier
