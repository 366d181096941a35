#include "client/cli/admin.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/error.h"
#include "client/socket_path.h"
#include "proto/support/wire_limits.h"

namespace kvtier::cli {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() || text.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const TlsOptions& tls) {
  if (!tls.given()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  for (const auto& [path, to] :
       {std::pair(&tls.ca, &options.pem_root_certs), std::pair(&tls.key, &options.pem_private_key),
        std::pair(&tls.certificate, &options.pem_cert_chain)}) {
    absl::StatusOr<std::string> text = ReadPem(*path);
    if (!text.ok()) return text.status();
    *to = *std::move(text);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

absl::StatusOr<Admin> Admin::Create(const std::string& target, const TlsOptions& tls,
                                    absl::Duration timeout) {
  const auto credentials = CredentialsOf(tls);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(wire::kAnswerBytesMax);
  if (!tls.server_name.empty()) arguments.SetSslTargetNameOverride(tls.server_name);
  return Admin(target, grpc::CreateCustomChannel(target, *credentials, arguments), timeout);
}

Admin::Admin(const std::string& target, std::shared_ptr<grpc::Channel> channel,
             absl::Duration timeout)
    : target_(target),
      timeout_(timeout),
      channel_(std::move(channel)),
      stub_(v1::KvTierAdmin::NewStub(channel_)) {}

absl::StatusOr<std::string> Admin::Health(const std::string& service) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel_)->Check(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

absl::Status Admin::Explain(const grpc::Status& status) const {
  absl::Status error = client::FromGrpcStatus(status);
  // What the daemon says has a reason. Without one it is gRPC that speaks, of sockets mostly.
  if (!client::ErrorReasonOf(error).empty()) return error;
  if (!absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error)) return error;
  absl::string_view path = target_;
  const std::string why = absl::ConsumePrefix(&path, "unix:") && absl::IsUnavailable(error)
                              ? client::DiagnoseSocket(std::string(path))
                              : absl::StrCat(target_, ": ", error.message());
  return absl::Status(error.code(), why);
}

}  // namespace kvtier::cli
