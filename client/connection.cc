#include "client/connection.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/socket_path.h"
#include "client/wire.h"
#include "proto/support/wire_limits.h"

namespace kvtier::client {
namespace {

constexpr int32_t kApiVersion = 1;
// A daemon that is not there yet is looked for this often. gRPC's "minimal back-off" is left alone:
// it is the time that an attempt to connect gets, and a daemon on a busy node may need more.
constexpr int kReconnectMillisecondsMin = 50;
constexpr int kReconnectMillisecondsMax = 1000;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(wire::kAnswerBytesMax);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMax);
  // Channels of one address otherwise share a connection, with the back-off of the last failure
  // and the fate of each other's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(SessionOptions options) {
  absl::StatusOr<std::string> path = CheckSocketPath("socket_path", options.socket_path);
  if (!path.ok()) return path.status();
  options.socket_path = *path;
  if (!options.fd_socket_path.empty()) {
    absl::StatusOr<std::string> fd_path = CheckSocketPath("fd_socket_path", options.fd_socket_path);
    if (!fd_path.ok()) return fd_path.status();
    options.fd_socket_path = *fd_path;
  }
  if (options.call_timeout <= absl::ZeroDuration()) {
    return ArgumentError("call_timeout", absl::FormatDuration(options.call_timeout), "> 0");
  }
  std::shared_ptr<Connection> connection(new Connection(std::move(options)));
  absl::Status started =
      connection->live_->reader.Start([raw = connection.get()] { raw->ReadEvents(); });
  if (!started.ok()) return started;
  if (absl::Status status = connection->WaitUntilOpened(); !status.ok()) return status;
  return connection;
}

Connection::Connection(SessionOptions options)
    : options_(std::move(options)), pid_(getpid()), live_(std::make_unique<Live>()) {
  live_->channel = MakeChannel(options_.socket_path);
  live_->stub = v1::KvTier::NewStub(live_->channel);
  live_->context.set_wait_for_ready(options_.wait_for_daemon);
}

Connection::~Connection() {
  Close();
  if (InForkedChild()) live_.release();  // NOLINT(bugprone-unused-return-value): leaked, see Live
}

bool Connection::InForkedChild() const { return getpid() != pid_; }

void Connection::Close() {
  if (InForkedChild()) return;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
  }
  live_->context.TryCancel();
  live_->reader.Join();
}

absl::Status Connection::WaitUntilOpened() {
  bool answered = false;
  {
    MutexLock lock(&mutex_);
    answered =
        changed_.WaitFor(&mutex_, options_.call_timeout,
                         [this]() KVTIER_CLIENT_REQUIRES(mutex_) { return opened_or_ended_; });
    if (answered && !ended_) return absl::OkStatus();
  }
  Close();
  if (!answered) {
    return OpeningError(grpc::Status(
        grpc::StatusCode::DEADLINE_EXCEEDED,
        absl::StrCat("no answer within ", absl::FormatDuration(options_.call_timeout))));
  }
  MutexLock lock(&mutex_);
  return OpeningError(end_status_);
}

absl::Status Connection::OpeningError(const grpc::Status& status) const {
  if (status.error_code() == grpc::StatusCode::OK) {
    return MalformedAnswer("OpenSession ended before it said `opened`");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat(
        "the server at ", options_.socket_path, " has no kvtier.v1.KvTier (",
        status.error_message(),
        "): it is no kvtierd, or one of another API version; this library speaks version ",
        kApiVersion));
  }
  const absl::Status error = CallError("OpenSession", status, options_.call_timeout);
  if (!ErrorReasonOf(error).empty()) return error;
  return absl::Status(
      error.code(), absl::StrCat(DiagnoseSocket(options_.socket_path), " (", error.message(), ")"));
}

void Connection::ReadEvents() {
  v1::OpenSessionRequest request;
  request.set_client_name(options_.client_name);
  request.set_api_version(kApiVersion);
  const auto events = live_->stub->OpenSession(&live_->context, request);
  v1::SessionEvent event;
  while (events->Read(&event)) HandleEvent(event);
  HandleEnd(events->Finish());
}

void Connection::HandleEvent(const v1::SessionEvent& event) {
  SessionState state = SessionState::kOpen;
  std::string message;
  {
    MutexLock lock(&mutex_);
    if (event.has_opened() && !opened_or_ended_) {
      opened_ = event.opened();
      devices_.assign(opened_.devices().begin(), opened_.devices().end());
      opened_or_ended_ = true;
      changed_.NotifyAll();
      return;
    }
    if (event.has_draining() && state_ == SessionState::kOpen) {
      state_ = SessionState::kDraining;
      message_ = event.draining().message();
    } else if (event.has_revoked()) {
      state_ = SessionState::kRevoked;
      message_ = event.revoked().message();
    } else {
      return;  // said before, or news of a later API
    }
    state = state_;
    message = message_;
    changed_.NotifyAll();
  }
  Tell(state, message);
}

void Connection::HandleEnd(const grpc::Status& status) {
  bool lost = false;
  std::string message;
  std::vector<std::function<void()>> hooks;
  {
    MutexLock lock(&mutex_);
    for (auto& [cache, ended] : caches_) {
      if (ended) hooks.push_back(std::exchange(ended, nullptr));
    }
    end_status_ = status;
    if (state_ != SessionState::kRevoked) {
      lost = opened_or_ended_ && !closing_;
      state_ = lost ? SessionState::kLost : SessionState::kClosed;
      message_ =
          status.ok() ? "the daemon ended the session without a word" : status.error_message();
      message = message_;
    }
    opened_or_ended_ = true;
    ended_ = true;
    changed_.NotifyAll();
  }
  for (const std::function<void()>& ended : hooks) ended();
  if (lost) Tell(SessionState::kLost, message);
}

void Connection::Tell(SessionState state, const std::string& message) const {
  if (options_.on_event) options_.on_event({state, message});
}

SessionState Connection::state() const {
  if (InForkedChild()) return SessionState::kClosed;
  MutexLock lock(&mutex_);
  return closing_ ? SessionState::kClosed : state_;
}

absl::Status Connection::StatusOf(SessionState state) const {
  switch (state) {
    case SessionState::kOpen:
    case SessionState::kDraining:
      return absl::OkStatus();
    case SessionState::kRevoked:
      return MakeError(absl::StatusCode::kNotFound, "SESSION_UNKNOWN",
                       absl::StrCat("the daemon ended session ", opened_.session_id(), ": ",
                                    message_, "; open a new one"),
                       {{"session_id", opened_.session_id()}});
    case SessionState::kLost:
      return absl::UnavailableError(absl::StrCat("the kvtierd behind ", options_.socket_path,
                                                 " is lost: ", message_,
                                                 "; open a new session and attach again"));
    case SessionState::kClosed:
      break;
  }
  return absl::FailedPreconditionError("the session is closed");
}

absl::Status Connection::CheckCall() const {
  if (InForkedChild()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session was opened by process ", pid_, " and this one, ", getpid(),
                     ", was forked from it: open a session of its own"));
  }
  MutexLock lock(&mutex_);
  return StatusOf(closing_ ? SessionState::kClosed : state_);
}

absl::Status Connection::CheckMemory(bool writes) const {
  absl::Status status = CheckCall();
  if (!writes && absl::IsUnavailable(status)) return absl::OkStatus();
  return status;
}

bool Connection::WaitUntilEnded(absl::Duration timeout) const {
  if (InForkedChild()) return true;
  MutexLock lock(&mutex_);
  return changed_.WaitFor(&mutex_, timeout,
                          [this]() KVTIER_CLIENT_REQUIRES(mutex_) { return ended_; });
}

absl::Status Connection::CallError(const char* name, const grpc::Status& status,
                                   absl::Duration timeout) const {
  const absl::Status error = FromGrpcStatus(status);
  if (!ErrorReasonOf(error).empty()) return error;
  if (absl::IsDeadlineExceeded(error)) {
    return absl::DeadlineExceededError(absl::StrCat(name, ": the kvtierd behind ",
                                                    options_.socket_path, " did not answer within ",
                                                    absl::FormatDuration(timeout)));
  }
  return absl::Status(error.code(), absl::StrCat(name, ": ", error.message()));
}

bool Connection::ClaimCache(const std::string& cache) {
  MutexLock lock(&mutex_);
  return caches_.emplace(cache, nullptr).second;
}

void Connection::DisclaimCache(const std::string& cache) {
  MutexLock lock(&mutex_);
  caches_.erase(cache);
}

void Connection::OnEnd(const std::string& cache, std::function<void()> ended) {
  {
    MutexLock lock(&mutex_);
    const auto claimed = caches_.find(cache);
    if (claimed == caches_.end()) return;
    if (!ended_) {
      claimed->second = std::move(ended);
      return;
    }
  }
  ended();
}

absl::StatusOr<int> Connection::RedeemToken(const std::string& token) const {
  return RedeemAt(
      FdSocketCandidates(options_.fd_socket_path, opened_.fd_socket_path(), options_.socket_path),
      token, options_.call_timeout);
}

}  // namespace kvtier::client
