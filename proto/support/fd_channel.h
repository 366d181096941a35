// The descriptor socket: a one-time token goes in, a file descriptor comes out.
//
// gRPC cannot carry descriptors, so that they travel over a SOCK_SEQPACKET Unix socket beside
// the daemon's own:
//
//   client -> daemon   one packet: the token's bytes, 1..kFdTokenBytesMax
//   daemon -> client   one packet: int32 status (google.rpc.Code, little endian), then UTF-8 text
//                      of at most kFdMessageBytesMax bytes; with status OK exactly one descriptor
//                      as SCM_RIGHTS and no text
//
// A connection may carry several tokens, one after the other. Descriptors that a client sends
// are never taken; those that come beyond the first are closed; an answer whose control data
// was cut off is refused. Plain POSIX; nothing here waits without a deadline.
//
//   absl::StatusOr<Descriptor> socket = ConnectFdSocket("/run/kvtierd/kvtierd.sock.fd");
//   absl::StatusOr<Descriptor> memory = RedeemFd(*socket, token, deadline);
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvtier {

// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// ---- The client's side.

// Connects; never waits. Errors: UNAVAILABLE with path and errno text (nobody listens there,
// or more clients connect than the daemon accepts), INVALID_ARGUMENT for no path of a socket.
absl::StatusOr<Descriptor> ConnectFdSocket(const std::string& path);

// Sends `token` and waits for its descriptor, which is close-on-exec. Errors: DEADLINE_EXCEEDED;
// UNAVAILABLE, the daemon closed the connection; INTERNAL, an answer that is none; else the
// daemon's refusal, NOT_FOUND for a token that it does not know.
absl::StatusOr<Descriptor> RedeemFd(const Descriptor& socket, absl::string_view token,
                                    absl::Time deadline);

// ---- The daemon's side, on non-blocking sockets.

// Reads one token. Errors: UNAVAILABLE, the peer is gone; RESOURCE_EXHAUSTED, nothing has
// arrived yet; INVALID_ARGUMENT, a packet that is no token.
absl::StatusOr<std::string> ReceiveToken(int socket);

// Answers with `fd` (which stays the caller's) or, if `status` is an error, with that. Errors:
// UNAVAILABLE, the peer is gone or does not read its answers.
absl::Status SendAnswer(int socket, const absl::Status& status, int fd);

}  // namespace kvtier
