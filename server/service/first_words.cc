#include "server/service/first_words.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace kvtier {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeadBytes = 9;
constexpr uint8_t kSettingsFrame = 4;
// Settings are some tens of bytes; who sends more has shown enough of them.
constexpr size_t kPeekBytes = 512;
// The first byte of a TLS record with a handshake. No preface begins with it.
constexpr char kTlsHandshake = 0x16;

bool HasHungUp(int fd) {
  pollfd peer = {.fd = fd, .events = POLLRDHUP, .revents = 0};
  return poll(&peer, 1, 0) == 1 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// All of it is there; `words` if the peer is as well.
FirstWords IfThere(int fd, FirstWords words) { return HasHungUp(fd) ? FirstWords::kGone : words; }

}  // namespace

FirstWords PeekFirstWords(int fd) {
  char buffer[kPeekBytes];
  const ssize_t got = recv(fd, buffer, sizeof(buffer), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return later ? FirstWords::kNotYet : FirstWords::kGone;
  }
  if (got == 0) return FirstWords::kGone;
  const absl::string_view words(buffer, static_cast<size_t>(got));
  if (words[0] == kTlsHandshake) return IfThere(fd, FirstWords::kTls);
  const size_t common = std::min(words.size(), kPreface.size());
  if (words.substr(0, common) != kPreface.substr(0, common)) return FirstWords::kOther;
  const absl::string_view frame = words.substr(common);
  if (frame.size() < kFrameHeadBytes) return FirstWords::kNotYet;
  if (static_cast<uint8_t>(frame[3]) != kSettingsFrame) return FirstWords::kOther;
  size_t payload_bytes = 0;
  for (int i = 0; i < 3; ++i) payload_bytes = payload_bytes << 8 | static_cast<uint8_t>(frame[i]);
  const size_t enough = std::min(kPreface.size() + kFrameHeadBytes + payload_bytes, sizeof(buffer));
  return words.size() >= enough ? IfThere(fd, FirstWords::kHttp2) : FirstWords::kNotYet;
}

}  // namespace kvtier
