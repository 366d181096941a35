#include "server/service/tcp_listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvtier {
namespace {

constexpr int kBacklog = 4096;
// A peer that is gone without a word (a machine, a cable) is found dead after that long, in which
// it is asked each minute. The kernel asks the peer's kernel: who is stopped lives,
// as long as there is room at its side for what comes.
constexpr int kSilenceSeconds = 60, kProbesMax = 10;
constexpr int kDeadSeconds = kSilenceSeconds * (1 + kProbesMax);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Listens at `where`, at `port` if that is not 0. Invalid with errno if it cannot.
UniqueFd ListenAt(const addrinfo& where, uint16_t port, bool both_families) {
  UniqueFd fd(socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fd;
  sockaddr_storage address = {};
  memcpy(&address, where.ai_addr, where.ai_addrlen);
  if (where.ai_family == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
    if (port != 0) reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(port);
  } else if (port != 0) {
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
  }
  // A restart need not wait for the last connections of the daemon before. A second server at the
  // same port is an error all the same.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // Inherited by connections.
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, kSilenceSeconds);
  SetOption(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, kSilenceSeconds);
  SetOption(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, kProbesMax);
  // Also with data under way, which the kernel would send again for a quarter of an hour. That ends
  // as well who is there but has stopped reading: data that has waited so long for room at a peer,
  // though its kernel answers, is taken for the same. Without the option such a peer would keep its
  // connection, and what it has not read, for good.
  SetOption(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kDeadSeconds * 1000);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), where.ai_addrlen) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

uint16_t PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::Status CannotListen(absl::string_view address, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen at the TCP address ", address, ": ", why,
                   "; it must be host:port of this machine, and free"));
}

// `host` and `port` as numbers. Null with a status.
absl::StatusOr<Addresses> Resolve(absl::string_view address, const std::string& host,
                                  const std::string& port) {
  const addrinfo hints = {
      .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return CannotListen(address, gai_strerror(error));
  }
  return Addresses(found, freeaddrinfo);
}

}  // namespace

absl::StatusOr<TcpListener> TcpListener::Listen(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return CannotListen(address, "no port");
  absl::string_view host = address.substr(0, colon);
  const std::string port(address.substr(colon + 1));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  std::vector<UniqueFd> fds;
  if (host == "0.0.0.0" || host == "::") {
    absl::StatusOr<Addresses> any = Resolve(address, "::", port);
    UniqueFd fd = any.ok() ? ListenAt(**any, 0, /*both_families=*/true) : UniqueFd();
    if (fd.valid()) fds.push_back(std::move(fd));
  }
  if (fds.empty()) {
    absl::StatusOr<Addresses> addresses = Resolve(address, std::string(host), port);
    if (!addresses.ok()) return addresses.status();
    for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
      // The first one's port is that of all.
      UniqueFd fd = ListenAt(*one, fds.empty() ? 0 : PortOf(fds[0].get()), false);
      if (!fd.valid()) return CannotListen(address, strerror(errno));
      fds.push_back(std::move(fd));
    }
  }
  const uint16_t real_port = PortOf(fds[0].get());
  return TcpListener(std::move(fds), absl::StrCat(address.substr(0, colon), ":", real_port));
}

}  // namespace kvtier
