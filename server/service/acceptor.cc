#include "server/service/acceptor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <utility>

#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Out of descriptors or memory: somebody has to close something first.
constexpr int kRestMilliseconds = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(
    int listener, const Log* log, std::function<void(UniqueFd)> on_connection) {
  KVTIER_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(listener, log, std::move(on_connection), std::move(wakeup)));
  KVTIER_ASSIGN_OR_RETURN(acceptor->thread_,
                          Thread::Start("kv-accept", [raw = acceptor.get()] { raw->Run(); }));
  return acceptor;
}

Acceptor::Acceptor(int listener, const Log* log, std::function<void(UniqueFd)> on_connection,
                   Wakeup wakeup)
    : listener_(listener),
      log_(log),
      on_connection_(std::move(on_connection)),
      wakeup_(std::move(wakeup)) {}

void Acceptor::Run() {
  for (bool resting = false;;) {
    pollfd entries[2] = {{.fd = wakeup_.fd(), .events = POLLIN},
                         {.fd = listener_, .events = POLLIN}};
    // At rest only the wakeup is looked at.
    poll(entries, resting ? 1 : 2, resting ? kRestMilliseconds : -1);
    if (entries[0].revents != 0) return;
    resting = !AcceptAll();
  }
}

bool Acceptor::AcceptAll() {
  for (;;) {
    UniqueFd connection(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      on_connection_(std::move(connection));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return true;
    log_->Event(LogLevel::kWarning, "accept_failed", {{"error", strerror(errno)}});
    return false;
  }
}

}  // namespace kvtier
