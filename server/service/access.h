// Who may call what (docs/SECURITY.md).
//
// Workers come over the Unix socket, where the kernel says whose process it is. Operators come over
// it as well, or over TCP with a client certificate. A call of neither kind changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "server/core/mutex.h"
#include "server/service/peer_table.h"
#include "server/session/types.h"

namespace kvtier {

// What callers of kvtier.v1.KvTierAdmin may do; each may do what the one before it may.
enum class Role { kNone, kViewer, kOperator };

// Who calls over the Unix socket, and what tells the connection from all others (PeerTable::Found).
struct WorkerCaller {
  Peer peer;
  int64_t connection = 0;
};

struct AccessRules {
  // Users who may connect to the Unix socket. None: all whom its mode lets in.
  std::vector<int32_t> allowed_uids;
  // Of those, who may look, and who may also drain and evict; the daemon's own user may.
  std::vector<int32_t> viewer_uids;
  std::vector<int32_t> operator_uids = {0};
  // The same by the names in client certificates.
  std::vector<std::string> tls_viewers, tls_operators;
};

// Thread-safe.
class AccessControl {
 public:
  // `peers` must outlive it. `tls`: who comes over TCP shows a certificate.
  AccessControl(PeerTable* peers, AccessRules rules, bool tls);
  virtual ~AccessControl() = default;
  AccessControl(const AccessControl&) = delete;
  AccessControl& operator=(const AccessControl&) = delete;

  // From now on; who is connected stays. Tells `peers` who the operators are.
  void SetRules(AccessRules rules);

  bool MayConnect(const Peer& peer) const;
  // Whose worker calls. Errors: ACCESS_DENIED over TCP, where nobody knows.
  absl::StatusOr<WorkerCaller> WorkerOf(const grpc::CallbackServerContext& call) const;
  // Errors: ACCESS_DENIED. `method` is for people.
  absl::Status CheckRole(const grpc::CallbackServerContext& call, absl::string_view method,
                         Role needed) const;
  // For the log: "uid 0, pid 17", "certificate ops.example, ipv4:10.0.0.1:4711".
  std::string NameOf(const grpc::CallbackServerContext& call) const;

 protected:
  // As gRPC names its connection. A context that gRPC has not made has none: for tests.
  virtual std::string PeerNameOf(const grpc::CallbackServerContext& call) const {
    return call.peer();
  }

 private:
  struct Caller {
    bool is_local = false;           // over the Unix socket
    Peer peer;                       // if it is
    int64_t connection = 0;          // ditto
    std::vector<std::string> names;  // of its certificate, if that has any
  };
  Caller CallerOf(const grpc::CallbackServerContext& call) const;
  Role RoleOf(const Caller& caller) const;

  PeerTable* const peers_;
  const bool tls_;
  mutable Mutex mutex_;  // rank: a leaf
  AccessRules rules_ KVTIER_GUARDED_BY(mutex_);
};

// ACCESS_DENIED for a user who is not in allowed_uids.
absl::Status MayNotConnect(const Peer& peer);

}  // namespace kvtier
