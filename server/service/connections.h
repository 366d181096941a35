// The daemon's sockets and who is connected to them: files and lock, doors, limits.
//
// Descriptors are what connections can take away from others: so there are as many connections,
// served and waiting, that a good part of the process's descriptors is left for what sessions map
// (limits of Open).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/clock.h"
#include "server/core/shared_memory.h"
#include "server/service/acceptor.h"
#include "server/service/connection_counts.h"
#include "server/service/log.h"
#include "server/service/peer_table.h"
#include "server/service/tcp_listener.h"
#include "server/service/unix_socket.h"

namespace kvtier {

// Of a process that may open `descriptors_max` descriptors.
struct ConnectionLimits {
  PeerLimits peers;
  PeerLimits tcp_peers;
  size_t waiting_max = 0;
};
ConnectionLimits ConnectionLimitsOf(size_t descriptors_max, size_t tcp_per_address_max);

class Connections {
 public:
  // `log` must outlive it. `tcp_per_address_max`: connections of one TCP address.
  Connections(const Log* log, size_t tcp_per_address_max);
  ~Connections();

  // Takes the lock and makes the sockets. Errors: see unix_socket.h.
  absl::Status Open(const std::string& socket_path, const std::string& fd_socket_path,
                    const SocketAccess& access);
  // Listens at a TCP address as well; returns it with its port. Errors: see tcp_listener.h.
  absl::StatusOr<std::string> OpenTcp(const std::string& address);
  // From now on `take` gets each connection of the Unix socket that has spoken, and `take_tcp`
  // those of TCP that are among those to be served, on a thread of this. `clock` must outlive it.
  // Errors: RESOURCE_EXHAUSTED.
  absl::Status Accept(const Clock* clock, std::function<void(UniqueFd)> take,
                      std::function<void(UniqueFd)> take_tcp);
  // Counts a connection that was taken among those that are served; `peer`: PeerOf. False, and
  // logged: it must not be.
  bool Add(const UniqueFd& connection, const Peer& peer);
  // Counts and logs a connection that is not taken.
  void Refuse(const Peer& peer, const std::string& address, Refusal why);
  // Nobody new. The lock keeps the next daemon away until Close.
  void StopAccepting();
  // Removes all files.
  void Close();

  // Listens for descriptors' tokens; -1 before Open.
  int fd_listener() const { return fd_listener_.has_value() ? fd_listener_->fd() : -1; }

  // Of the Unix socket and of TCP together.
  size_t open() const { return peers_.open() + tcp_peers_.open(); }
  size_t max() const { return limits_.peers.connections_max + limits_.tcp_peers.connections_max; }

  PeerTable& peers() { return peers_; }
  const PeerTable& peers() const { return peers_; }
  ConnectionCounts& counts() { return counts_; }
  const ConnectionCounts& counts() const { return counts_; }

 private:
  Connections(const ConnectionLimits& limits, const Log* log);

  const ConnectionLimits limits_;
  const Log* const log_;
  PeerTable peers_;
  PeerTable tcp_peers_;
  ConnectionCounts counts_;
  std::optional<SocketLock> lock_;
  std::optional<UnixListener> listener_;
  std::optional<UnixListener> fd_listener_;
  std::vector<TcpListener> tcp_listeners_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace kvtier
