#include "client/cli/admin.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/error.h"
#include "client/socket_path.h"
#include "proto/support/wire_limits.h"

namespace kvtier::cli {
namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(wire::kAnswerBytesMax);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Admin::Admin(const std::string& target, absl::Duration timeout)
    : target_(target),
      timeout_(timeout),
      channel_(ChannelTo(target)),
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
