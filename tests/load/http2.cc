#include "tests/load/http2.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvtier::load {
namespace {

constexpr timeval kPatience = {.tv_sec = 5, .tv_usec = 0};
constexpr size_t kFrameHeadBytes = 9, kFrameBytesMax = 16384;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes; i-- > 0;) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

uint32_t Number(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

absl::StatusOr<Descriptor> Connected(int family, int type, const sockaddr* address, size_t size) {
  Descriptor peer(socket(family, type | SOCK_CLOEXEC, 0));
  if (!peer.valid()) return absl::ResourceExhaustedError(strerror(errno));
  setsockopt(peer.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  if (connect(peer.get(), address, static_cast<socklen_t>(size)) != 0) {
    return absl::UnavailableError(absl::StrCat("connect: ", strerror(errno)));
  }
  return peer;
}

absl::StatusOr<Descriptor> ConnectToPath(absl::string_view path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError("a long path");
  memcpy(address.sun_path, path.data(), path.size());
  return Connected(AF_UNIX, type, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

// HPACK: a literal that nobody remembers, without Huffman coding.
std::string Header(absl::string_view name, absl::string_view value) {
  return absl::StrCat(BigEndian(0, 1), BigEndian(static_cast<uint32_t>(name.size()), 1), name,
                      BigEndian(static_cast<uint32_t>(value.size()), 1), value);
}

}  // namespace

absl::StatusOr<Descriptor> ConnectTo(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "unix:")) return ConnectToPath(address, SOCK_STREAM);
  if (absl::ConsumePrefix(&address, "fd:")) return ConnectToPath(address, SOCK_SEQPACKET);
  const size_t colon = address.rfind(':');
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, std::string(address.substr(0, colon)).c_str(), &peer.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("no address: ", address));
  }
  peer.sin_port = htons(static_cast<uint16_t>(port));
  return Connected(AF_INET, SOCK_STREAM, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer));
}

absl::Status SendAll(const Descriptor& peer, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return absl::UnavailableError(absl::StrCat("send: ", strerror(errno)));
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

bool ReadAvailable(const Descriptor& peer, std::string* bytes) {
  for (;;) {
    char piece[16384];
    const ssize_t got = recv(peer.get(), piece, sizeof(piece), MSG_DONTWAIT);
    if (got > 0) {
      if (bytes != nullptr) bytes->append(piece, static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

bool IsClosed(const Descriptor& peer) { return ReadAvailable(peer, nullptr); }

void Reset(Descriptor peer) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

int64_t RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string Preface() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"; }

std::string Frame(FrameKind kind, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3),
                      BigEndian(static_cast<uint32_t>(kind), 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

std::string Settings(const std::vector<std::pair<uint16_t, uint32_t>>& values) {
  std::string payload;
  for (const auto& [name, value] : values) {
    absl::StrAppend(&payload, BigEndian(name, 2), BigEndian(value, 4));
  }
  return Frame(FrameKind::kSettings, 0, 0, payload);
}

std::string CallHeaders(uint32_t stream, absl::string_view method) {
  return Frame(FrameKind::kHeaders, kEndHeaders, stream,
               absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"),
                            Header(":path", method), Header(":authority", "localhost"),
                            Header("te", "trailers"), Header("content-type", "application/grpc")));
}

std::string MessageHead(uint32_t bytes) {
  return absl::StrCat(BigEndian(0, 1), BigEndian(bytes, 4));
}

std::string Message(uint32_t stream, const google::protobuf::MessageLite& message) {
  const std::string body = message.SerializeAsString();
  const std::string data = absl::StrCat(MessageHead(static_cast<uint32_t>(body.size())), body);
  std::string frames;
  for (size_t at = 0; at < data.size(); at += kFrameBytesMax) {
    const bool last = at + kFrameBytesMax >= data.size();
    frames += Frame(FrameKind::kData, last ? kEndStream : 0, stream,
                    absl::string_view(data).substr(at, kFrameBytesMax));
  }
  return frames;
}

std::vector<ReceivedFrame> TakeFrames(std::string* bytes) {
  std::vector<ReceivedFrame> frames;
  absl::string_view left = *bytes;
  while (left.size() >= kFrameHeadBytes) {
    const size_t length = Number(left.substr(0, 3));
    if (left.size() < kFrameHeadBytes + length) break;
    frames.push_back({static_cast<FrameKind>(left[3]), static_cast<uint8_t>(left[4]),
                      Number(left.substr(5, 4)),
                      std::string(left.substr(kFrameHeadBytes, length))});
    left.remove_prefix(kFrameHeadBytes + length);
  }
  bytes->erase(0, bytes->size() - left.size());
  return frames;
}

int64_t IncrementOf(const ReceivedFrame& frame) { return Number(frame.payload); }

int64_t CountFrames(absl::string_view bytes, FrameKind kind) {
  int64_t count = 0;
  while (bytes.size() >= kFrameHeadBytes) {
    const size_t length = Number(bytes.substr(0, 3));
    if (static_cast<uint8_t>(bytes[3]) == static_cast<uint8_t>(kind)) ++count;
    bytes.remove_prefix(std::min(bytes.size(), kFrameHeadBytes + length));
  }
  return count;
}

}  // namespace kvtier::load
