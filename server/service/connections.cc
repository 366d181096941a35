#include "server/service/connections.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/core/limits.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// A session, and as many tools beside it as there are sessions.
constexpr size_t kConnectionsMax = 2 * kSessionsMax;
// A process that has every session of the node for itself; or a user's processes in containers,
// which the kernel does not tell apart.
constexpr size_t kConnectionsPerProcessMax = kSessionsMax;
// For operators: a few tools and probes.
constexpr size_t kConnectionsReserved = 32;
static_assert(kConnectionsPerProcessMax + kConnectionsReserved <= kConnectionsMax);

size_t DescriptorsMax() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

}  // namespace

ConnectionLimits ConnectionLimitsOf(size_t descriptors_max, size_t tcp_per_address_max) {
  const size_t served = std::clamp<size_t>(descriptors_max / 2, 1, kConnectionsMax);
  return {.peers = {.connections_max = served,
                    .per_process_max =
                        std::max<size_t>(served * kConnectionsPerProcessMax / kConnectionsMax, 1),
                    .reserved = served * kConnectionsReserved / kConnectionsMax,
                    .operator_uid = static_cast<int32_t>(geteuid())},
          .tcp_peers = {.connections_max =
                            std::clamp<size_t>(descriptors_max / 8, 1, kTcpConnectionsMax),
                        .per_address_max = tcp_per_address_max},
          .waiting_max = std::clamp<size_t>(descriptors_max / 8, 1, kWaitingMax)};
}

Connections::Connections(const Log* log, size_t tcp_per_address_max)
    : Connections(ConnectionLimitsOf(DescriptorsMax(), tcp_per_address_max), log) {}

Connections::Connections(const ConnectionLimits& limits, const Log* log)
    : limits_(limits), log_(log), peers_(limits.peers), tcp_peers_(limits.tcp_peers) {}

Connections::~Connections() { Close(); }

absl::Status Connections::Open(const std::string& socket_path, const std::string& fd_socket_path,
                               const SocketAccess& access) {
  KVTIER_ASSIGN_OR_RETURN(SocketLock lock, SocketLock::Take(socket_path));
  lock_.emplace(std::move(lock));
  KVTIER_ASSIGN_OR_RETURN(UnixListener fd_listener,
                          UnixListener::Listen(fd_socket_path, SOCK_SEQPACKET, access));
  fd_listener_.emplace(std::move(fd_listener));
  KVTIER_ASSIGN_OR_RETURN(UnixListener listener,
                          UnixListener::Listen(socket_path, SOCK_STREAM, access));
  listener_.emplace(std::move(listener));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Connections::OpenTcp(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Listen(address));
  tcp_listeners_.push_back(std::move(listener));
  return tcp_listeners_.back().address();
}

absl::Status Connections::Accept(const Clock* clock, std::function<void(UniqueFd)> take,
                                 std::function<void(UniqueFd)> take_tcp) {
  std::vector<Acceptor::Door> doors;
  doors.push_back({.listener = listener_->fd(), .take = std::move(take)});
  for (const TcpListener& listener : tcp_listeners_) {
    for (const UniqueFd& fd : listener.fds()) {
      doors.push_back({.listener = fd.get(), .take = [this, take_tcp](UniqueFd connection) {
                         const std::string address = AddressOf(connection.get());
                         const std::optional<Refusal> why =
                             tcp_peers_.Add(connection.get(), {}, address);
                         if (why.has_value()) return Refuse({}, address, *why);
                         take_tcp(std::move(connection));
                       }});
    }
  }
  KVTIER_ASSIGN_OR_RETURN(
      acceptor_, Acceptor::Start(std::move(doors), {.waiting_max = limits_.waiting_max}, clock,
                                 log_, &counts_));
  return absl::OkStatus();
}

bool Connections::Add(const UniqueFd& connection, const Peer& peer) {
  const std::optional<Refusal> why = peers_.Add(connection.get(), peer);
  if (why.has_value()) Refuse(peer, "", *why);
  return !why.has_value();
}

void Connections::Refuse(const Peer& peer, const std::string& address, Refusal why) {
  counts_.Refused(why);
  log_->Event(
      LogLevel::kWarning, "connection_refused",
      {{"uid", peer.uid}, {"pid", peer.pid}, {"address", address}, {"why", RefusalName(why)}});
}

void Connections::StopAccepting() {
  acceptor_.reset();
  listener_.reset();
  tcp_listeners_.clear();
}

void Connections::Close() {
  StopAccepting();
  fd_listener_.reset();
  lock_.reset();
}

}  // namespace kvtier
