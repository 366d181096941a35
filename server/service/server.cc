#include "server/service/server.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "proto/kvtier/v1/errors.pb.h"
#include "server/core/mutex.h"
#include "server/core/status_macros.h"
#include "server/core/thread.h"
#include "server/service/admin_service.h"
#include "server/service/call_log.h"
#include "server/service/connections.h"
#include "server/service/control_executor.h"
#include "server/service/deaf_clients.h"
#include "server/service/fd_server.h"
#include "server/service/health_service.h"
#include "server/service/incoming_calls.h"
#include "server/service/kv_tier_service.h"
#include "server/service/metrics_server.h"
#include "server/service/open_calls.h"
#include "server/service/readiness.h"
#include "server/service/refusal_server.h"
#include "server/service/server_arguments.h"
#include "server/service/stats_history.h"
#include "server/service/unread_answers.h"

namespace kvtier {
namespace {

// How long a change of readiness may go unnoticed.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(100);
// How long the answers of calls that a shutdown ends may take to be on their way.
constexpr absl::Duration kLastWords = absl::Milliseconds(100);

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, const ServerParts& parts)
      : options_(std::move(options)),
        parts_(parts),
        call_log_(parts.log),
        connections_(parts.log, static_cast<size_t>(options_.tcp_connections_per_address_max)),
        unread_answers_(std::make_shared<UnreadAnswers>(options_.unread_answers, parts.clock)),
        incoming_calls_(std::make_shared<IncomingCalls>(options_.incoming_calls, parts.clock)),
        incoming_tcp_calls_(
            std::make_shared<IncomingCalls>(options_.incoming_tcp_calls, parts.clock)),
        deaf_clients_(unread_answers_.get(), &connections_, parts.node, parts.clock, parts.log),
        readiness_(parts.node, parts.pool, parts.backend, &connections_.counts(), parts.log),
        access_(&connections_.peers(), options_.rules, options_.tls.given()) {}
  ~Impl() { Shutdown(absl::ZeroDuration()); }

  absl::Status Start();
  void Drain(absl::string_view message);
  std::vector<std::string> Shutdown(absl::Duration grace);
  void SetRules(AccessRules rules) { access_.SetRules(std::move(rules)); }

  const std::string& socket_path() const { return options_.socket_path; }
  std::vector<std::string> listen_addresses() const {
    MutexLock lock(&mutex_);
    return listen_addresses_;
  }
  std::string metrics_address() const {
    return metrics_ == nullptr ? std::string() : metrics_->url();
  }
  std::vector<std::string> open_calls() const { return open_calls_.Names(); }

 private:
  absl::Status StartGrpc();
  absl::Status StartThreads();
  absl::Status StartStatistics();
  MetricsInput ReadMetrics() const;
  void FillContexts();
  void TakeConnection(UniqueFd connection);
  // Writes readiness to the health service.
  void UpdateHealth() KVTIER_EXCLUDES(mutex_);
  void RunHealth();
  void StopHealth();

  ServerOptions options_;
  const ServerParts parts_;
  OpenCalls open_calls_;
  CallLog call_log_;
  StatsHistory history_;
  Connections connections_;
  const std::shared_ptr<UnreadAnswers> unread_answers_;
  const std::shared_ptr<IncomingCalls> incoming_calls_, incoming_tcp_calls_;
  DeafClients deaf_clients_;  // of the health thread
  SessionCallContext session_context_;
  AdminContext admin_context_;
  std::string fd_socket_path_;

  std::unique_ptr<ControlExecutor> executor_;
  std::unique_ptr<KvTierService> kv_tier_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<StatsSampler> sampler_;
  std::shared_ptr<grpc::ServerCredentials> tcp_credentials_;
  // Takes connections of TCP; null where there is none.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tcp_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<RefusalServer> refusals_;
  std::unique_ptr<FdServer> fd_server_;
  Thread health_thread_;

  Readiness readiness_;
  AccessControl access_;

  mutable Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<std::string> listen_addresses_ KVTIER_GUARDED_BY(mutex_);
};

absl::Status Server::Impl::Start() {
  KVTIER_ASSIGN_OR_RETURN(options_.socket_path, CleanSocketPath(options_.socket_path));
  KVTIER_ASSIGN_OR_RETURN(fd_socket_path_, FdSocketPathOf(options_.socket_path));
  KVTIER_RETURN_IF_ERROR(CheckSocketAccess(options_.access));
  KVTIER_RETURN_IF_ERROR(connections_.Open(options_.socket_path, fd_socket_path_, options_.access));
  KVTIER_ASSIGN_OR_RETURN(executor_,
                          ControlExecutor::Start({.threads = options_.control_threads,
                                                  .queue_max = options_.control_queue_max}));
  FillContexts();
  KVTIER_RETURN_IF_ERROR(StartStatistics());
  KVTIER_RETURN_IF_ERROR(StartGrpc());
  return StartThreads();
}

void Server::Impl::FillContexts() {
  const std::vector<DeviceInfo> devices = parts_.backend->Devices();
  session_context_ = {.node = parts_.node,
                      .open_calls = &open_calls_,
                      .call_log = &call_log_,
                      .unread_answers = unread_answers_.get(),
                      .log = parts_.log,
                      .version = options_.version,
                      .fd_socket_path = fd_socket_path_,
                      .devices = devices};
  admin_context_ = {.node = parts_.node,
                    .pool = parts_.pool,
                    .log = parts_.log,
                    .call_log = &call_log_,
                    .history = &history_,
                    .executor = executor_.get(),
                    .access = &access_,
                    .version = options_.version,
                    .devices = devices,
                    .listen_addresses = [this] { return listen_addresses(); },
                    .metrics_address = [this] { return metrics_address(); },
                    .not_ready_reason = [this] { return readiness_.Reason(); },
                    .drain = [this](absl::string_view message) { Drain(message); }};
  const CallDoor door = {incoming_calls_.get(), incoming_tcp_calls_.get(), &connections_.peers(),
                         &call_log_};
  kv_tier_ = std::make_unique<KvTierService>(door, &session_context_, parts_.clock, &access_,
                                             executor_.get());
  admin_ = std::make_unique<AdminService>(door, &admin_context_);
  health_ = std::make_unique<HealthService>(door);
}

// Both read what the node knows, and never wait for a device.
absl::Status Server::Impl::StartStatistics() {
  KVTIER_ASSIGN_OR_RETURN(sampler_, StatsSampler::Start([this] {
                            absl::StatusOr<v1::GetStatsResponse> look = admin_->ReadStats("");
                            if (look.ok()) history_.Record(*std::move(look));
                          }));
  if (options_.metrics_address.empty()) return absl::OkStatus();
  KVTIER_ASSIGN_OR_RETURN(
      metrics_, MetricsServer::Start(options_.metrics_address, [this] { return ReadMetrics(); }));
  return absl::OkStatus();
}

MetricsInput Server::Impl::ReadMetrics() const {
  MetricsInput input = {.version = options_.version,
                        .boot_id = parts_.node->boot_id(),
                        .start_time = parts_.node->start_time(),
                        .ready = readiness_.Reason().empty(),
                        .limits = parts_.node->limits(),
                        .pool = parts_.pool->stats(),
                        .control_queue_depth = executor_->queue_depth(),
                        .control_queue_max = executor_->queue_max(),
                        .calls = call_log_.Rows(),
                        .connections_open = connections_.open(),
                        .connections_max = connections_.max(),
                        .connections = &connections_.counts(),
                        .log_lines_suppressed = parts_.log->suppressed_lines()};
  // All caches: cannot fail.
  if (absl::StatusOr<NodeSnapshot> node = parts_.node->Snapshot(""); node.ok()) {
    input.node = *std::move(node);
  }
  for (const DeviceInfo& device : admin_context_.devices) {
    input.devices.push_back({device, parts_.node->DeviceBytesUsed(device.uuid)});
  }
  return input;
}

absl::Status Server::Impl::StartGrpc() {
  KVTIER_ASSIGN_OR_RETURN(refusals_, RefusalServer::Start());
  // The reasons are in no message of ours, but whoever gets one may look it up.
  (void)v1::ErrorReason_descriptor();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetServerArguments(!options_.tcp_addresses.empty(), &builder);
  builder.RegisterService(kv_tier_.get());
  builder.RegisterService(admin_.get());
  builder.RegisterService(health_.get());
  KVTIER_ASSIGN_OR_RETURN(tcp_credentials_, TcpCredentials(options_.tls));
  if (options_.tls.given() && !CanServe(tcp_credentials_)) {
    return absl::FailedPreconditionError(
        "TLS cannot be served with these files: they must be what they are said to be, and tls_key "
        "the key of tls_certificate");
  }
  std::vector<std::string> addresses = {absl::StrCat("unix:", options_.socket_path)};
  for (const std::string& address : options_.tcp_addresses) {
    KVTIER_ASSIGN_OR_RETURN(addresses.emplace_back(), connections_.OpenTcp(address));
  }
  if (!options_.tcp_addresses.empty()) {
    tcp_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, tcp_credentials_);
  }
  health_->Set("liveness", true);
  UpdateHealth();
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::InternalError("gRPC does not start");
  {
    MutexLock lock(&mutex_);
    listen_addresses_ = std::move(addresses);
  }
  return absl::OkStatus();
}

absl::Status Server::Impl::StartThreads() {
  KVTIER_ASSIGN_OR_RETURN(health_thread_, Thread::Start("kv-health", [this] { RunHealth(); }));
  KVTIER_ASSIGN_OR_RETURN(fd_server_,
                          FdServer::Start(connections_.fd_listener(), parts_.clock, parts_.log,
                                          [this](absl::string_view token, Peer peer) {
                                            return parts_.node->RedeemToken(token, peer);
                                          }));
  return connections_.Accept(
      parts_.clock, [this](UniqueFd connection) { TakeConnection(std::move(connection)); },
      [this](UniqueFd connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.fd = connection.Release();
        tcp_->HandleNewConnection(&parameters);
      });
}

void Server::Impl::TakeConnection(UniqueFd connection) {
  const Peer peer = PeerOf(connection.get());
  if (!access_.MayConnect(peer)) {
    connections_.Refuse(peer, "", Refusal::kNotAllowed);
    refusals_->Refuse(std::move(connection));
    return;
  }
  if (!connections_.Add(connection, peer)) return;
  grpc::AddInsecureChannelFromFd(grpc_.get(), connection.Release());
}

void Server::Impl::UpdateHealth() {
  const auto set = [this](bool ready) {
    health_->Set("", ready);
    health_->Set(v1::KvTier::service_full_name(), ready);
  };
  const bool ready = readiness_.ReasonLogged().empty();
  set(ready);
  // Two threads write here, and "ready" must not be the last word after a drain.
  if (ready && readiness_.closed()) set(false);
}

void Server::Impl::RunHealth() {
  for (;;) {
    UpdateHealth();
    deaf_clients_.End();
    incoming_calls_->GiveUpLate();
    incoming_tcp_calls_->GiveUpLate();
    if (parts_.on_alive) parts_.on_alive();
    MutexLock lock(&mutex_);
    if (stopping_) return;
    changed_.WaitFor(&mutex_, kHealthInterval);
    if (stopping_) return;
  }
}

void Server::Impl::StopHealth() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  health_thread_.Join();
}

void Server::Impl::Drain(absl::string_view message) {
  readiness_.Close();
  UpdateHealth();
  parts_.node->Drain(message);
}

std::vector<std::string> Server::Impl::Shutdown(absl::Duration grace) {
  std::vector<std::string> stuck;
  if (grpc_ != nullptr) {
    const absl::Time deadline = absl::Now() + grace;
    const std::string message = readiness_.StoppingMessage();
    Drain(message);
    StopHealth();
    open_calls_.Close();
    // Nobody new; the lock keeps the next daemon away until this one is gone.
    connections_.StopAccepting();
    const absl::Status closed = parts_.node->CloseAllSessions(message, deadline);
    if (!closed.ok())
      parts_.log->Event(LogLevel::kWarning, "sessions_left", {{"status", closed.ToString()}});
    if (!open_calls_.WaitUntilNone(deadline)) {
      stuck = open_calls_.Names();
      // Who waits hears why: gRPC would only hang up.
      open_calls_.EndAll();
      open_calls_.WaitUntilNone(absl::Now() + kLastWords);
    }
    // What is left is cancelled: calls that run and are stuck, and those that go on until somebody
    // ends them. They hear UNAVAILABLE from their own gRPC; what comes now is CANCELLED by this
    // one, which begins no more calls, until it has hung up.
    grpc_->Shutdown(std::chrono::system_clock::now());
    grpc_->Wait();
    grpc_.reset();
  }
  refusals_.reset();
  StopHealth();
  metrics_.reset();
  sampler_.reset();
  connections_.StopAccepting();
  fd_server_.reset();
  executor_.reset();
  connections_.Close();
  return stuck;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const ServerParts& parts) {
  auto impl = std::make_unique<Impl>(options, parts);
  KVTIER_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

const std::string& Server::socket_path() const { return impl_->socket_path(); }
std::vector<std::string> Server::listen_addresses() const { return impl_->listen_addresses(); }
std::string Server::metrics_address() const { return impl_->metrics_address(); }
void Server::SetRules(AccessRules rules) { impl_->SetRules(std::move(rules)); }
void Server::Drain(absl::string_view message) { impl_->Drain(message); }
std::vector<std::string> Server::Shutdown(absl::Duration grace) { return impl_->Shutdown(grace); }
std::vector<std::string> Server::open_calls() const { return impl_->open_calls(); }

}  // namespace kvtier
