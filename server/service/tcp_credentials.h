// What TCP addresses are served with: mutual TLS, or nothing where that is asked for by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"

namespace kvtier {

// PEM files, looked at again for each connection: a renewal needs no restart. All or none.
struct TlsFiles {
  std::string certificate;  // of the server, with the chain up to its authority
  std::string key;
  std::string client_ca;  // of the authorities that clients' certificates are from

  bool given() const { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

// "host:port", the host a name, an IPv4 address, or an IPv6 address in brackets. Errors:
// INVALID_ARGUMENT, also for what gRPC takes beside these ("unix:/path").
absl::Status CheckTcpAddress(absl::string_view address);
// Can this machine alone reach it?
bool IsLoopback(absl::string_view address);

// May `addresses` be served with `files`? Looks at no file. Errors: INVALID_ARGUMENT.
absl::Status CheckTcp(const std::vector<std::string>& addresses, const TlsFiles& files,
                      bool allow_insecure);

// Requires a certificate of every client, of an authority in client_ca; without `files`: no TLS.
// Must outlive the server. Errors: FAILED_PRECONDITION, with what is wrong with which file.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TcpCredentials(const TlsFiles& files);

// Can gRPC serve with them? It finds out about some mistakes, like a key that is another
// certificate's, only when it listens.
bool CanServe(const std::shared_ptr<grpc::ServerCredentials>& credentials);

}  // namespace kvtier
