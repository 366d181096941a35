// Paths of the daemon's Unix sockets, and what is wrong with one. Internal to client/.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvtier::client {

// sockaddr_un.sun_path holds 108 bytes with the terminator.
inline constexpr int kSocketPathBytesMax = 107;

// `path` without a leading "unix:" or "unix://". Errors: INVALID_ARGUMENT / FIELD_INVALID about
// `field` for a path that is empty, too long, or has control characters (a line feed, mostly).
absl::StatusOr<std::string> CheckSocketPath(absl::string_view field, absl::string_view path);

// Why nobody answers at `path`, in words, by trying: "/run/x.sock does not exist: is kvtierd
// running, with this --socket?"
std::string DiagnoseSocket(const std::string& path);

// Where to look for the descriptor socket: only `configured`, if that is given; else where the
// daemon says it is, then that name beside `socket_path`, for a process that sees the daemon's
// folder under another path.
std::vector<std::string> FdSocketCandidates(const std::string& configured,
                                            const std::string& announced,
                                            const std::string& socket_path);

}  // namespace kvtier::client
