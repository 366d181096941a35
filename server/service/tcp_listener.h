// Listening TCP sockets of one address.
//
// Like those of gRPC, but accepted from by the daemon itself (acceptor.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"

namespace kvtier {

class TcpListener {
 public:
  // `address`: "host:port", with an IPv6 address in brackets; port 0: any. A host of several
  // addresses is listened at on all of them; 0.0.0.0 stands for every address of the machine, IPv6
  // ones as well where it has them. Errors: FAILED_PRECONDITION with what is wrong.
  static absl::StatusOr<TcpListener> Listen(absl::string_view address);

  TcpListener(TcpListener&&) = default;
  TcpListener& operator=(TcpListener&&) = delete;

  // Non-blocking.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  // The address with the port that it really has.
  const std::string& address() const { return address_; }

 private:
  TcpListener(std::vector<UniqueFd> fds, std::string address)
      : fds_(std::move(fds)), address_(std::move(address)) {}

  std::vector<UniqueFd> fds_;
  std::string address_;
};

}  // namespace kvtier
