// Who is behind each connection, and how many there are.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/core/mutex.h"
#include "server/service/connection_counts.h"
#include "server/session/types.h"

namespace kvtier {

// How gRPC names connections that it was handed: "fd:17".
inline constexpr absl::string_view kLocalPeerPrefix = "fd:";

// How many connections are served at a time.
struct PeerLimits {
  size_t connections_max = 0;
  // Where the kernel does not name the process (one of another PID namespace: a container): of all
  // such processes of its user together.
  size_t per_process_max = 0;
  // Of one TCP address. It gets no more than are still free, either: however many addresses come,
  // there is a place for the next.
  size_t per_address_max = 0;
  // Of connections_max: for this user, root and operators alone, so that there is a way in when
  // workers, or others, have taken all the rest.
  size_t reserved = 0;
  int32_t operator_uid = -1;
};

// The peer of a connected Unix socket, as the kernel says it; {-1, -1} of another socket.
Peer PeerOf(int fd);
// The same without its groups.
Peer ProcessOf(int fd);
// As whom its calls are counted: a process, or, where the kernel does not name that, all of its
// user's that it does not name.
std::string CountedAs(const Peer& peer);
// Whose a TCP connection is, as places are counted: the peer's address, of IPv6 the first 64 bits,
// as one machine may have all behind them, and of loopback one for all. "" of another socket.
std::string AddressOf(int fd);
// The same of an in_addr (AF_INET) or in6_addr (AF_INET6).
std::string CountedAs(int family, const void* address);
// The same by the name that gRPC gives a TCP connection: "ipv4:192.0.2.1:4711". A name that is none
// counts by itself.
std::string AddressOf(absl::string_view name);

// The daemon accepts connections itself and hands them to gRPC, which names them "fd:17" in
// ServerContext::peer(). gRPC does not say when a connection ends; its entry is dropped when the
// number is used again, or when room is wanted. Thread-safe.
class PeerTable {
 public:
  explicit PeerTable(const PeerLimits& limits) : limits_(limits) {}

  // From now on: who may use the reserved places, beside those of the limits.
  void SetOperators(std::vector<int32_t> uids);

  // Notes the peer of a connection that is about to be served; or why it must not be.
  // `address`: of a TCP connection, AddressOf.
  std::optional<Refusal> Add(int fd, Peer peer, std::string address = "");
  struct Found {
    Peer peer;  // {-1, -1} for connections that are not ours (TCP)
    // What tells the connection from all others, also from those that get its name once it has
    // ended: for whoever remembers it for longer than a call lasts. 0 if it is not ours.
    int64_t id = 0;
    bool is_operator = false;  // may use what is reserved
  };
  // `name` as ServerContext::peer() says it.
  Found Find(absl::string_view name) const;
  // {-1, -1} if it is not ours, or has been forgotten.
  Peer FindById(int64_t id) const;
  // Ends a connection, as if its peer had: all its calls are cancelled. False if it is not ours, or
  // has ended.
  bool End(int64_t id);

  // Connections that are open now.
  size_t open() const;
  const PeerLimits& limits() const { return limits_; }

 private:
  struct Entry {
    int64_t id = 0;
    Peer peer;
    std::string address;
    ino_t inode = 0;  // of the socket: tells whether the number is still this connection
  };
  using Entries = absl::flat_hash_map<int, Entry>;  // by descriptor
  void DropEnded() KVTIER_REQUIRES(mutex_);
  bool IsOperator(int32_t uid) const KVTIER_REQUIRES(mutex_);
  Entries::const_iterator Locate(int64_t id) const KVTIER_REQUIRES(mutex_);
  std::optional<Refusal> Check(const Entry& entry) const KVTIER_REQUIRES(mutex_);
  size_t Count(const std::function<bool(const Entry&)>& counts) const KVTIER_REQUIRES(mutex_);

  const PeerLimits limits_;
  mutable Mutex mutex_;  // rank: a leaf
  std::vector<int32_t> operators_ KVTIER_GUARDED_BY(mutex_);
  Entries entries_ KVTIER_GUARDED_BY(mutex_);
  int64_t next_id_ KVTIER_GUARDED_BY(mutex_) = 1;
};

}  // namespace kvtier
