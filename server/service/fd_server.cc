#include "server/service/fd_server.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "proto/support/fd_channel.h"
#include "server/core/status_macros.h"
#include "server/service/peer_table.h"

namespace kvtier {
namespace {

constexpr int kRestMilliseconds = 100;
// New connections before those that are there get their turn.
constexpr int kAcceptsPerTurn = 64;
// Tokens of one peer before the others get their turn.
constexpr int kTokensPerTurn = 16;
// How late an idle connection may be noticed.
constexpr int kTickMilliseconds = 250;

}  // namespace

absl::StatusOr<std::unique_ptr<FdServer>> FdServer::Start(int listener, const Clock* clock,
                                                          const Log* log, Redeem redeem) {
  KVTIER_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  std::unique_ptr<FdServer> server(
      new FdServer(listener, clock, log, std::move(redeem), std::move(wakeup)));
  KVTIER_ASSIGN_OR_RETURN(server->thread_,
                          Thread::Start("kv-fd-socket", [raw = server.get()] { raw->Run(); }));
  return server;
}

FdServer::FdServer(int listener, const Clock* clock, const Log* log, Redeem redeem, Wakeup wakeup)
    : listener_(listener),
      clock_(clock),
      log_(log),
      redeem_(std::move(redeem)),
      wakeup_(std::move(wakeup)) {}

void FdServer::Run() {
  for (bool resting = false;;) {
    std::vector<pollfd> entries = {{.fd = wakeup_.fd(), .events = POLLIN},
                                   // A negative descriptor is left out by poll().
                                   {.fd = resting ? -1 : listener_, .events = POLLIN}};
    for (const Connection& connection : connections_) {
      entries.push_back({.fd = connection.fd.get(), .events = POLLIN});
    }
    const int timeout = resting ? kRestMilliseconds : connections_.empty() ? -1 : kTickMilliseconds;
    const int ready = poll(entries.data(), entries.size(), timeout);
    if (entries[0].revents != 0) return;
    if (ready > 0) {
      for (size_t i = connections_.size(); i-- > 0;) {
        if (entries[i + 2].revents != 0 && !Serve(connections_[i])) {
          connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
    DropIdle();
    resting = !AcceptSome();
  }
}

bool FdServer::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      MakeRoom();
      const Peer peer = PeerOf(fd.get());
      connections_.push_back({.fd = std::move(fd), .peer = peer, .last_used = clock_->Now()});
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return true;
    log_->Event(LogLevel::kWarning, "fd_accept_failed", {{"error", strerror(errno)}});
    return false;
  }
  return true;
}

void FdServer::MakeRoom() {
  // The one that has been silent for longest, among those of the peer that has most: connections
  // that say nothing cannot keep out those that do, nor push them out before they have spoken. What
  // it has sent and nobody has read yet is answered first, and then it was not silent.
  for (size_t i = connections_.size(); connections_.size() >= kFdConnectionsMax; --i) {
    absl::flat_hash_map<std::pair<int32_t, int32_t>, size_t> counts;
    for (const Connection& one : connections_) ++counts[{one.peer.pid, one.peer.uid}];
    const auto rank = [&](const Connection& one) {
      return std::make_pair(-static_cast<int64_t>(counts[{one.peer.pid, one.peer.uid}]),
                            one.last_used);
    };
    const auto oldest = std::min_element(
        connections_.begin(), connections_.end(),
        [&](const Connection& a, const Connection& b) { return rank(a) < rank(b); });
    const absl::Time last_used = oldest->last_used;
    const bool silent = !Serve(*oldest) || oldest->last_used == last_used;
    // A look at each must be enough, however fast they ask.
    if (silent || i == 0) connections_.erase(oldest);
  }
}

void FdServer::DropIdle() {
  const absl::Time oldest = clock_->Now() - kFdIdleMax;
  std::erase_if(connections_,
                [&](const Connection& connection) { return connection.last_used < oldest; });
}

bool FdServer::Serve(Connection& connection) {
  for (int i = 0; i < kTokensPerTurn; ++i) {
    const absl::StatusOr<std::string> token = ReceiveToken(connection.fd.get());
    if (absl::IsResourceExhausted(token.status())) return true;  // that was the last one
    if (absl::IsUnavailable(token.status())) return false;
    const absl::StatusOr<UniqueFd> fd =
        token.ok() ? redeem_(*token, connection.peer) : absl::StatusOr<UniqueFd>(token.status());
    if (!fd.ok()) {
      // Never the token itself: it may be good for somebody else.
      log_->Event(LogLevel::kWarning, "token_refused",
                  {{"pid", connection.peer.pid},
                   {"uid", connection.peer.uid},
                   {"status", fd.status().message()}});
    }
    connection.last_used = clock_->Now();
    if (!SendAnswer(connection.fd.get(), fd.status(), fd.ok() ? fd->get() : -1).ok()) return false;
    // A peer that sends what is no token has lost its way.
    if (!token.ok()) return false;
  }
  return true;
}

}  // namespace kvtier
