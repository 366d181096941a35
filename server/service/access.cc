#include "server/service/access.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

// A uid that no user has: the kernel did not say.
constexpr int32_t kNobodyKnows = -1;

template <typename Value>
bool IsIn(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool AreAnyIn(const std::vector<std::string>& known, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return IsIn(known, name); });
}

std::vector<std::string> PropertiesOf(const grpc::AuthContext& context, const char* name) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : context.FindPropertyValues(name)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

// The subject's alternative names; of a certificate that has none, its common name.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context) {
  if (!context.IsPeerAuthenticated()) return {};
  std::vector<std::string> names = PropertiesOf(context, GRPC_X509_SAN_PROPERTY_NAME);
  if (names.empty()) names = PropertiesOf(context, GRPC_X509_CN_PROPERTY_NAME);
  // An empty one names nobody.
  names.erase(std::remove(names.begin(), names.end(), std::string()), names.end());
  return names;
}

absl::Status Denied(absl::string_view message, absl::string_view needs, ErrorMetadata metadata) {
  metadata["needs"] = std::string(needs);
  return MakeError(absl::StatusCode::kPermissionDenied, "ACCESS_DENIED", message, metadata);
}

}  // namespace

AccessControl::AccessControl(PeerTable* peers, AccessRules rules, bool tls)
    : peers_(peers), tls_(tls) {
  SetRules(std::move(rules));
}

void AccessControl::SetRules(AccessRules rules) {
  peers_->SetOperators(rules.operator_uids);
  MutexLock lock(&mutex_);
  rules_ = std::move(rules);
}

bool AccessControl::MayConnect(const Peer& peer) const {
  MutexLock lock(&mutex_);
  return rules_.allowed_uids.empty() || IsIn(rules_.allowed_uids, peer.uid);
}

AccessControl::Caller AccessControl::CallerOf(const grpc::CallbackServerContext& call) const {
  Caller caller;
  const std::string name = PeerNameOf(call);
  if (absl::StartsWith(name, kLocalPeerPrefix)) {
    caller.is_local = true;
    PeerTable::Found found = peers_->Find(name);
    caller.peer = std::move(found.peer);
    caller.connection = found.id;
  } else {
    caller.names = CertificateNames(*call.auth_context());
  }
  return caller;
}

Role AccessControl::RoleOf(const Caller& caller) const {
  MutexLock lock(&mutex_);
  if (caller.is_local) {
    const int32_t uid = caller.peer.uid;
    if (uid == kNobodyKnows) return Role::kNone;
    // Who runs as the daemon's own user can do anything to it anyway.
    if (uid == static_cast<int32_t>(geteuid()) || IsIn(rules_.operator_uids, uid)) {
      return Role::kOperator;
    }
    return IsIn(rules_.viewer_uids, uid) ? Role::kViewer : Role::kNone;
  }
  // Whoever can reach the address, which an operator opened for that. Not to be told by the names:
  // a certificate may have none, and then gRPC does not even call its owner authenticated.
  if (!tls_) return Role::kViewer;
  if (AreAnyIn(rules_.tls_operators, caller.names)) return Role::kOperator;
  return AreAnyIn(rules_.tls_viewers, caller.names) ? Role::kViewer : Role::kNone;
}

absl::StatusOr<WorkerCaller> AccessControl::WorkerOf(
    const grpc::CallbackServerContext& call) const {
  Caller caller = CallerOf(call);
  if (caller.is_local && caller.peer.uid != kNobodyKnows) {
    return WorkerCaller{std::move(caller.peer), caller.connection};
  }
  return Denied(
      "workers connect to the Unix socket: elsewhere nobody knows whose they are, and no memory "
      "can "
      "be handed over",
      "worker", {});
}

absl::Status AccessControl::CheckRole(const grpc::CallbackServerContext& call,
                                      absl::string_view method, Role needed) const {
  const Caller caller = CallerOf(call);
  if (RoleOf(caller) >= needed) return absl::OkStatus();
  const bool view = needed == Role::kViewer;
  const absl::string_view needs = view ? "viewer" : "operator";
  const std::string what =
      absl::StrCat(method, view ? " is for viewers and operators" : " is for operators");
  if (caller.is_local) {
    return Denied(
        absl::StrCat(what, ", and user ", caller.peer.uid,
                     " is not in the daemon's --operator_uids", view ? " or --viewer_uids" : ""),
        needs, {{"uid", absl::StrCat(caller.peer.uid)}});
  }
  if (!tls_) {
    return Denied(absl::StrCat(what, ", and over TCP without TLS nobody is one"), needs, {});
  }
  const std::string names = absl::StrJoin(caller.names, ",");
  return Denied(
      absl::StrCat(what, ", and the certificate of ", names,
                   " has no name of the daemon's --tls_operators", view ? " or --tls_viewers" : ""),
      needs, {{"certificate", names}});
}

std::string AccessControl::NameOf(const grpc::CallbackServerContext& call) const {
  const Caller caller = CallerOf(call);
  if (caller.is_local) return absl::StrCat("uid ", caller.peer.uid, ", pid ", caller.peer.pid);
  const std::string peer = PeerNameOf(call);
  return caller.names.empty()
             ? peer
             : absl::StrCat("certificate ", absl::StrJoin(caller.names, ","), ", ", peer);
}

absl::Status MayNotConnect(const Peer& peer) {
  return Denied(absl::StrCat("this is kvtierd, and user ", peer.uid,
                             " may not connect: the daemon's --allowed_uids does not name it"),
                "connection", {{"uid", absl::StrCat(peer.uid)}});
}

}  // namespace kvtier
