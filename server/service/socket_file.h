// The files of a Unix socket: its path, its lock, its mode.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// Where the descriptor socket of a server at `path` is; "" where there is no room for it.
std::string FdSocketPathOf(absl::string_view path);

// Takes "<path>.lock" for this process until the descriptor closes. Errors: FAILED_PRECONDITION /
// FIELD_INVALID (no such folder, not writable, the path is no socket), ALREADY_EXISTS /
// ID_CONFLICT where another process holds it.
absl::StatusOr<UniqueFd> LockSocketPath(const std::string& path);

// Gives a socket file its owner group and mode. Errors: FAILED_PRECONDITION / FIELD_INVALID.
absl::Status SetSocketAccess(const std::string& path, int mode, int gid);

}  // namespace kvtier
