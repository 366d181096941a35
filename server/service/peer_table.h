// Who is behind each connection of the Unix socket.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/core/mutex.h"
#include "server/session/types.h"

namespace kvtier {

// How gRPC names connections that it was handed: "fd:17".
inline constexpr absl::string_view kLocalPeerPrefix = "fd:";

// The daemon accepts connections itself and hands them to gRPC, which names them "fd:17" in
// ServerContext::peer(). gRPC does not say when a connection ends; its entry is dropped when the
// number is used again, or when room is wanted. Thread-safe.
class PeerTable {
 public:
  explicit PeerTable(size_t connections_max) : connections_max_(connections_max) {}

  // Notes the peer of a connection that was just accepted. False if as many are open already.
  bool Add(int fd);
  // `name` as ServerContext::peer() says it; {-1, -1} for connections that are not ours (TCP).
  Peer Find(absl::string_view name) const;

 private:
  struct Entry {
    Peer peer;
    ino_t inode = 0;  // of the socket: tells whether the number is still this connection
  };
  void DropEnded() KVTIER_REQUIRES(mutex_);

  const size_t connections_max_;
  mutable Mutex mutex_;  // rank: a leaf
  absl::flat_hash_map<int, Entry> entries_ KVTIER_GUARDED_BY(mutex_);
};

// The peer of a connected Unix socket, as the kernel says it.
Peer PeerOf(int fd);

}  // namespace kvtier
