// The daemon's server: both services of kvtier.v1, health, reflection, the descriptor socket.
//
//   SystemClock clock;
//   Log log(&clock);
//   auto server = Server::Start({.socket_path = "/run/kvtierd/kvtierd.sock"},
//                               {&clock, &node, pool.get(), backend.get(), &log});
//   if (!server.ok()) return Fail(server.status());
//   ...
//   std::vector<std::string> stuck = (*server)->Shutdown(absl::Seconds(5));
//
// Who may do what: docs/SECURITY.md. WARNING: without ServerOptions::tls whoever reaches a TCP
// address can look at everything that viewers can; keep it on loopback then.
//
// Health (grpc.health.v1): "liveness" is SERVING while the process answers; "" and
// "kvtier.v1.KvTier" are SERVING while work is taken: pool ready, not draining, device alive.
// Neither waits for a device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/access.h"
#include "server/service/incoming_calls.h"
#include "server/service/log.h"
#include "server/service/tcp_credentials.h"
#include "server/service/unix_socket.h"
#include "server/service/unread_answers.h"
#include "server/session/node.h"

namespace kvtier {

struct ServerOptions {
  std::string version;
  // Where workers connect. The descriptor socket and the lock file lie beside it.
  std::string socket_path;
  SocketAccess access;  // of both sockets
  // "host:port", for operators; port 0: any. None by default. With `tls`: mutual TLS on all.
  std::vector<std::string> tcp_addresses;
  TlsFiles tls;
  int32_t tcp_connections_per_address_max = kTcpConnectionsPerAddress;
  AccessRules rules;  // whom of those who reach it the server answers
  // "host:port" where Prometheus scrapes; port 0: any. Empty: nowhere.
  std::string metrics_address;
  // How much may wait for clients that do not read.
  UnreadAnswers::Limits unread_answers;
  // How much may be on its way from clients: over the Unix socket, and over TCP.
  IncomingCalls::Limits incoming_calls, incoming_tcp_calls = kTcpCalls;
  int32_t control_threads = kControlThreads;
  int32_t control_queue_max = kControlQueueMax;
};

// What it serves. Everything must outlive the server.
struct ServerParts {
  const Clock* clock = nullptr;
  Node* node = nullptr;
  const HostPool* pool = nullptr;
  const DeviceBackend* backend = nullptr;
  const Log* log = nullptr;
  // Called again and again, by the thread that health depends on; must not wait. None: not called.
  std::function<void()> on_alive;
};

class Server {
 public:
  // Serves when it returns, also while the pool is still being pinned. Errors: see unix_socket.h;
  // nothing of anybody else's is touched then.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const ServerParts& parts);
  // As Shutdown(0).
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Cleaned: "/run/kvtierd/kvtierd.sock".
  const std::string& socket_path() const;
  // "unix:<path>", then the TCP addresses with the ports that they really have.
  std::vector<std::string> listen_addresses() const;
  // "http://127.0.0.1:9400/metrics", or "".
  std::string metrics_address() const;

  // As ServerOptions::rules, from now on; who is connected stays.
  void SetRules(AccessRules rules);

  // Readiness off at once; nothing new is admitted; sessions are told; what runs goes on.
  void Drain(absl::string_view message);

  // Readiness off at once; no new calls; sessions end; calls at work get `grace`, then they are
  // cancelled. Removes the socket's files. Returns the names of calls that did not end in time,
  // and waits for them: where they hang for good, so does this (see open_calls). Once.
  std::vector<std::string> Shutdown(absl::Duration grace);

  // Calls at work, by name. Waits for nothing.
  std::vector<std::string> open_calls() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
