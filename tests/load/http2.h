// HTTP/2 by hand: what no library sends, as a broken or hostile peer does.
//
//   absl::StatusOr<Descriptor> peer = ConnectTo("unix:/run/kvtierd/kvtierd.sock");
//   SendAll(*peer, Preface() + Settings({{kInitialWindow, 0}}));
//   SendAll(*peer, CallHeaders(1, "/kvtier.v1.KvTier/OpenSession") + Message(1, request));
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"
#include "proto/support/fd_channel.h"

namespace kvtier::load {

// ---- Sockets. `address`: "unix:<path>" (stream), "fd:<path>" (the descriptor socket), or
// "<IPv4>:<port>". Connecting waits for the other side's queue, a few seconds. Sending waits no
// longer than that either.
absl::StatusOr<Descriptor> ConnectTo(absl::string_view address);
// Errors: UNAVAILABLE, the other side closed the connection, or reads nothing.
absl::Status SendAll(const Descriptor& peer, absl::string_view bytes);
// Has the other side closed it? What has arrived is thrown away. Never waits.
bool IsClosed(const Descriptor& peer);
// The same, and what has arrived is appended to `bytes`.
bool ReadAvailable(const Descriptor& peer, std::string* bytes);
// Closes it with a reset where the kind of socket has one.
void Reset(Descriptor peer);

// As many descriptors as this process may have. Returns how many.
int64_t RaiseDescriptorLimit();

// ---- Frames (RFC 9113).
enum class FrameKind : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
inline constexpr uint8_t kEndStream = 1, kEndHeaders = 4;
inline constexpr uint16_t kInitialWindow = 4;  // of SETTINGS

std::string Preface();
std::string Frame(FrameKind kind, uint8_t flags, uint32_t stream, absl::string_view payload);
std::string Settings(const std::vector<std::pair<uint16_t, uint32_t>>& values);
// The largest window that a call or a connection has at its beginning.
inline constexpr int64_t kFirstWindow = 65535;
// The beginning of a message of so many bytes, for DATA frames.
std::string MessageHead(uint32_t bytes);
// Opens `stream` with a gRPC request to `method` ("/package.Service/Method").
std::string CallHeaders(uint32_t stream, absl::string_view method);
// A gRPC message in DATA frames; the last ends the client's side of the stream.
std::string Message(uint32_t stream, const google::protobuf::MessageLite& message);

struct ReceivedFrame {
  FrameKind kind;
  uint8_t flags = 0;
  uint32_t stream = 0;
  std::string payload;
};
// Takes the whole frames at the beginning of `bytes`.
std::vector<ReceivedFrame> TakeFrames(std::string* bytes);
// Of a window update: by how much.
int64_t IncrementOf(const ReceivedFrame& frame);

// How many frames of `kind` are in `bytes`, a whole number of frames but for the last.
int64_t CountFrames(absl::string_view bytes, FrameKind kind);

}  // namespace kvtier::load
