// The descriptor socket: tokens for descriptors.
//
// SOCK_SEQPACKET on a Unix socket. A peer sends a token as one packet and gets one packet back:
// "ok" with one descriptor (SCM_RIGHTS), or a text that says why not. One thread serves all peers
// and waits for none of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"
#include "server/session/types.h"

namespace kvtier {

class FdServer {
 public:
  using Redeem = std::function<absl::StatusOr<UniqueFd>(absl::string_view token, Peer peer)>;

  // Listens at `path` (any old socket there is replaced) with `mode`. Errors: FAILED_PRECONDITION
  // with path and errno text.
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(const std::string& path, int mode,
                                                         Redeem redeem);
  // Removes the socket file.
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  FdServer(std::string path, UniqueFd listener, UniqueFd wake, Redeem redeem);
  void Loop();
  void Accept(std::vector<UniqueFd>* peers);
  // False: the peer is done with.
  bool Serve(int peer);

  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd wake_;  // readable: stop
  const Redeem redeem_;
  std::thread thread_;
};

}  // namespace kvtier
