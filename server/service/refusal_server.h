// Says no to connections of users who may not connect.
//
// Closing them without a word would look like a daemon that is broken, or none. This one answers
// every call with PERMISSION_DENIED / ACCESS_DENIED, has nothing else to offer, and closes the
// connection soon.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// Such connections at a time; more are closed at once.
inline constexpr size_t kRefusedConnectionsMax = 16;

class RefusalServer {
 public:
  // Errors: INTERNAL.
  static absl::StatusOr<std::unique_ptr<RefusalServer>> Start();
  // Closes every connection.
  ~RefusalServer();
  RefusalServer(const RefusalServer&) = delete;
  RefusalServer& operator=(const RefusalServer&) = delete;

  // `connection` was just accepted on the Unix socket.
  void Refuse(UniqueFd connection);

 private:
  class Impl;
  explicit RefusalServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
