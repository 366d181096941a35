#include "server/service/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/status_macros.h"
#include "server/service/admin_service.h"
#include "server/service/control_executor.h"
#include "server/service/fd_server.h"
#include "server/service/kv_tier_service.h"
#include "server/service/socket_file.h"

namespace kvtier {
namespace {

// How long a change of readiness may go unnoticed.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(100);
constexpr int kKeepaliveMs = 20000;

// Restores the process's umask.
class ScopedUmask {
 public:
  explicit ScopedUmask(mode_t mask) : former_(umask(mask)) {}
  ~ScopedUmask() { umask(former_); }

 private:
  const mode_t former_;
};

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, Node* node, HostPool* pool, DeviceBackend* backend)
      : options_(std::move(options)),
        node_(node),
        pool_(pool),
        backend_(backend),
        executor_(kControlThreads, kControlQueueMax) {}

  ~Impl() { Shutdown(absl::ZeroDuration()); }

  absl::Status Start() {
    KVTIER_ASSIGN_OR_RETURN(options_.socket_path, CleanSocketPath(options_.socket_path));
    if ((options_.socket_mode & 0002) != 0 && !options_.allow_world_writable) {
      return FieldInvalid("socket_mode", absl::StrCat(absl::Hex(options_.socket_mode)),
                          "not writable for everyone");
    }
    KVTIER_ASSIGN_OR_RETURN(lock_, LockSocketPath(options_.socket_path));
    KVTIER_ASSIGN_OR_RETURN(
        fd_server_, FdServer::Start(FdSocketPath(), options_.socket_mode,
                                    [this](absl::string_view token, Peer peer) {
                                      return node_->RedeemToken(token, peer);
                                    }));
    KVTIER_RETURN_IF_ERROR(SetSocketAccess(FdSocketPath(), options_.socket_mode,
                                           options_.socket_gid));
    KVTIER_RETURN_IF_ERROR(Listen());
    health_thread_ = std::thread([this] { HealthLoop(); });
    return absl::OkStatus();
  }

  void Shutdown(absl::Duration grace) {
    StopHealth();
    if (server_ != nullptr) {
      server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
      server_->Wait();
      server_.reset();
      (void)unlink(options_.socket_path.c_str());
    }
    fd_server_.reset();
    if (lock_.valid()) {
      (void)unlink((options_.socket_path + ".lock").c_str());
      lock_.Reset();
    }
  }

 private:
  std::string FdSocketPath() const { return FdSocketPathOf(options_.socket_path); }

  absl::Status Listen() {
    KvTierServiceOptions kv_tier{.version = options_.version,
                                 .fd_socket_path = FdSocketPath(),
                                 .devices = backend_->Devices()};
    const std::vector<std::string> addresses = Addresses();
    AdminServiceOptions admin{.version = options_.version, .listen_addresses = addresses};
    kv_tier_ = std::make_unique<KvTierService>(std::move(kv_tier), node_, &executor_);
    admin_ = std::make_unique<AdminService>(std::move(admin), node_, pool_, backend_);

    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.SetMaxSendMessageSize(kMessageBytesMax);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs / 2);
    builder.RegisterService(kv_tier_.get());
    builder.RegisterService(admin_.get());
    for (const std::string& address : addresses) {
      builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    }
    {
      // Never wider than configured, not even for the moment before the chmod.
      const ScopedUmask narrow(static_cast<mode_t>(~options_.socket_mode & 0777));
      server_ = builder.BuildAndStart();
    }
    if (server_ == nullptr) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "FIELD_INVALID",
                       absl::StrCat("cannot listen at ", options_.socket_path,
                                    options_.tcp_addresses.empty() ? "" : " or a TCP address"),
                       {{"field", "socket"}, {"value", options_.socket_path}});
    }
    SetServing(false);
    server_->GetHealthCheckService()->SetServingStatus("liveness", true);
    return SetSocketAccess(options_.socket_path, options_.socket_mode, options_.socket_gid);
  }

  std::vector<std::string> Addresses() const {
    std::vector<std::string> addresses = {absl::StrCat("unix:", options_.socket_path)};
    addresses.insert(addresses.end(), options_.tcp_addresses.begin(),
                     options_.tcp_addresses.end());
    return addresses;
  }

  void SetServing(bool serving) {
    server_->GetHealthCheckService()->SetServingStatus("", serving);
    server_->GetHealthCheckService()->SetServingStatus("kvtier.v1.KvTier", serving);
  }

  bool Ready() const {
    return pool_->stats().state == HostPool::State::kReady && backend_->Health().ok() &&
           !node_->draining();
  }

  void HealthLoop() {
    bool serving = false;
    for (;;) {
      if (const bool ready = Ready(); ready != serving) SetServing(serving = ready);
      MutexLock lock(&mutex_);
      if (stopping_) break;
      changed_.WaitFor(&mutex_, kHealthInterval);
      if (stopping_) break;
    }
    SetServing(false);
  }

  void StopHealth() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    if (health_thread_.joinable()) health_thread_.join();
  }

  ServerOptions options_;
  Node* const node_;
  HostPool* const pool_;
  DeviceBackend* const backend_;
  ControlExecutor executor_;
  UniqueFd lock_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<KvTierService> kv_tier_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  std::thread health_thread_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Node* node,
                                                      HostPool* pool, DeviceBackend* backend) {
  auto impl = std::make_unique<Impl>(options, node, pool, backend);
  KVTIER_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Shutdown(absl::Duration grace) { impl_->Shutdown(grace); }

}  // namespace kvtier
