#include "server/service/refusal_server.h"

#include <chrono>
#include <utility>
#include <vector>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "server/core/error.h"
#include "server/service/access.h"
#include "server/service/peer_table.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

// Long enough to hear the answer.
constexpr int kConnectionMilliseconds = 1000;
constexpr int kHeaderBytesMax = 8 << 10;

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }

 private:
  ~RefusedCall() override = default;
};

// No reflection, which gRPC adds to every server of a process: it is refused like all else.
class NothingElse final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

}  // namespace

class RefusalServer::Impl final : public grpc::CallbackGenericService {
 public:
  Impl()
      : peers_({.connections_max = kRefusedConnectionsMax,
                .per_process_max = kRefusedConnectionsMax}) {}
  ~Impl() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(this);
    builder.SetOption(std::make_unique<NothingElse>());
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kHeaderBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kConnectionMilliseconds);
    server_ = builder.BuildAndStart();
    return server_ == nullptr ? InternalError("gRPC cannot make a second server")
                              : absl::OkStatus();
  }

  void Refuse(UniqueFd connection) {
    if (peers_.Add(connection.get(), PeerOf(connection.get())).has_value()) return;
    grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* call) override {
    return new RefusedCall(ToWire(MayNotConnect(peers_.Find(call->peer()).peer)));
  }

 private:
  PeerTable peers_;
  std::unique_ptr<grpc::Server> server_;
};

RefusalServer::RefusalServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RefusalServer::~RefusalServer() = default;

absl::StatusOr<std::unique_ptr<RefusalServer>> RefusalServer::Start() {
  auto impl = std::make_unique<Impl>();
  if (absl::Status started = impl->Start(); !started.ok()) return started;
  return std::unique_ptr<RefusalServer>(new RefusalServer(std::move(impl)));
}

void RefusalServer::Refuse(UniqueFd connection) { impl_->Refuse(std::move(connection)); }

}  // namespace kvtier
