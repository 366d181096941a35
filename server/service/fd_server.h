// Serves the descriptor socket (proto/support/fd_channel.h): tokens in, descriptors out.
//
// One thread, which never waits for a peer: a peer that sends nothing, or does not read its
// answers, costs one of kFdConnectionsMax places until somebody else wants it or kFdIdleMax has
// passed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/core/shared_memory.h"
#include "server/core/thread.h"
#include "server/service/log.h"
#include "server/service/wakeup.h"
#include "server/session/types.h"

namespace kvtier {

// Every session may redeem a token at the same time; none needs two connections.
inline constexpr size_t kFdConnectionsMax = kSessionsMax;
inline constexpr absl::Duration kFdIdleMax = absl::Seconds(10);

class FdServer {
 public:
  // Must not wait.
  using Redeem = std::function<absl::StatusOr<UniqueFd>(absl::string_view token, Peer peer)>;

  // `listener` (SOCK_SEQPACKET, non-blocking), `clock` and `log` must outlive the server.
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(int listener, const Clock* clock,
                                                         const Log* log, Redeem redeem);
  // Closes every connection.
  ~FdServer() { wakeup_.Wake(); }
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  struct Connection {
    UniqueFd fd;
    Peer peer;
    absl::Time last_used;
  };

  FdServer(int listener, const Clock* clock, const Log* log, Redeem redeem, Wakeup wakeup);
  void Run();
  // False if accepting must rest a while.
  bool AcceptSome();
  void MakeRoom();
  void DropIdle();
  // False if the connection is to be closed.
  bool Serve(Connection& connection);

  const int listener_;
  const Clock* const clock_;
  const Log* const log_;
  const Redeem redeem_;
  std::vector<Connection> connections_;  // of the thread
  Wakeup wakeup_;
  Thread thread_;  // last: joins while the rest is there
};

}  // namespace kvtier
