// The daemon's gRPC server: both services, health, reflection and the descriptor socket.
//
// WARNING. gRPC takes over a Unix socket that another server listens at, without an error: the
// lock file is what keeps two daemons apart. Start takes it first; nobody else may call gRPC for
// the same path.
//
//   auto server = Server::Start({.socket_path = "/run/kvtierd/kvtierd.sock"}, &node, &pool,
//                               backend.get());
//   ...
//   (*server)->Shutdown(absl::Seconds(5));
//
// Health: "" and "kvtier.v1.KvTier" say whether work is taken (pool ready, not draining, device
// alive); "liveness" says that the process answers. Neither waits for a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/session/node.h"

namespace kvtier {

struct ServerOptions {
  std::string version;
  std::string socket_path;                 // at most 107 bytes; "unix:" in front is allowed
  int socket_mode = 0660;                  // of both sockets, whatever the umask
  int socket_gid = -1;                     // -1: the process's
  std::vector<std::string> tcp_addresses;  // host:port, for operators; none by default
  bool allow_world_writable = false;       // refuse socket_mode & 0002 otherwise
};

class Server {
 public:
  // All must outlive the server. Errors: FAILED_PRECONDITION or INVALID_ARGUMENT / FIELD_INVALID
  // with the path and what is wrong with it; ALREADY_EXISTS / ID_CONFLICT "in use" where another
  // daemon holds the lock. Nothing of another daemon's is touched then.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Node* node,
                                                       HostPool* pool, DeviceBackend* backend);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Readiness off at once; then no new calls; calls that run have `grace` to end and are cancelled
  // then. Returns when the last handler has ended: one that ignores it holds this up, so the
  // caller bounds the wait.
  void Shutdown(absl::Duration grace);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What is wrong with `path` as a socket path, or the path without "unix:" in front and without
// white space behind.
absl::StatusOr<std::string> CleanSocketPath(absl::string_view path);

}  // namespace kvtier
