// Accepts connections of the daemon's Unix socket on a thread of its own.
//
// gRPC's listener has no credentials of its peers, follows the umask, takes over living sockets,
// and in this version stops accepting for good after certain errors. This one never stops: what
// fails is logged, and tried again a little later.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/core/shared_memory.h"
#include "server/core/thread.h"
#include "server/service/log.h"
#include "server/service/wakeup.h"

namespace kvtier {

class Acceptor {
 public:
  // `listener` is non-blocking and listens; it and `log` must outlive the acceptor.
  // `on_connection` gets each connection, non-blocking and close-on-exec, on the acceptor's thread.
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      int listener, const Log* log, std::function<void(UniqueFd)> on_connection);
  // After this returns `on_connection` runs no more.
  ~Acceptor() { wakeup_.Wake(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor(int listener, const Log* log, std::function<void(UniqueFd)> on_connection,
           Wakeup wakeup);
  void Run();
  // False if accepting must rest a while.
  bool AcceptAll();

  const int listener_;
  const Log* const log_;
  const std::function<void(UniqueFd)> on_connection_;
  Wakeup wakeup_;
  Thread thread_;  // last: joins while the rest is there
};

}  // namespace kvtier
