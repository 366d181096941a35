#include "server/service/session_reactor.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/service/convert.h"
#include "server/service/status.h"

namespace kvtier {
namespace {

class SessionReactor;

// What the node knows of the call. It may outlive the reactor, which takes itself out first.
class SessionLink final : public SessionObserver {
 public:
  explicit SessionLink(SessionReactor* reactor) : reactor_(reactor) {}
  void OnDraining(const std::string& message) override;
  void OnRevoked(const std::string& message) override;
  void Cut() {
    MutexLock lock(&mutex_);
    reactor_ = nullptr;
  }

 private:
  Mutex mutex_;  // held while the reactor takes an event: it must not go away meanwhile
  SessionReactor* reactor_ KVTIER_GUARDED_BY(mutex_);
};

class SessionReactor final : public grpc::ServerWriteReactor<v1::SessionEvent> {
 public:
  SessionReactor(const KvTierServiceOptions& options, Node* node,
                 const v1::OpenSessionRequest& request)
      : node_(node), link_(std::make_shared<SessionLink>(this)) {
    const absl::Status status = Open(options, request);
    if (!status.ok()) End(ToGrpcStatus(status));
  }

  // Events are written one at a time, in order. `last`: the call ends after it.
  void Push(v1::SessionEvent event, bool last) {
    MutexLock lock(&mutex_);
    if (ending_) return;
    events_.push_back(std::move(event));
    if (last) end_status_ = grpc::Status::OK;
    ending_ = last;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    events_.pop_front();
    if (!ok) Abandon();
    Advance();
  }

  // The worker went away: fence first.
  void OnCancel() override {
    Close();
    MutexLock lock(&mutex_);
    Abandon();
    Advance();
  }

  void OnDone() override {
    Close();
    link_->Cut();
    delete this;
  }

 private:
  absl::Status Open(const KvTierServiceOptions& options, const v1::OpenSessionRequest& request) {
    if (request.client_name().size() > kNameBytesMax) {
      return FieldInvalid("client_name", absl::StrCat(request.client_name().size(), " bytes"),
                          absl::StrCat("at most ", kNameBytesMax, " bytes"));
    }
    if (request.api_version() != 0 && request.api_version() != 1) {
      return FieldInvalid("api_version", absl::StrCat(request.api_version()), "1");
    }
    // A Unix socket under gRPC does not tell who the peer is; the descriptor socket does.
    absl::StatusOr<std::string> session =
        node_->OpenSession(request.client_name(), Peer{}, link_);
    if (!session.ok()) return session.status();
    session_id_ = *session;
    v1::SessionEvent event;
    v1::SessionOpened* opened = event.mutable_opened();
    opened->set_session_id(session_id_);
    opened->set_boot_id(node_->boot_id());
    opened->set_fd_socket_path(options.fd_socket_path);
    opened->set_daemon_version(options.version);
    for (const DeviceInfo& device : options.devices) {
      *opened->add_devices() = DeviceToProto(device);
    }
    MutexLock lock(&mutex_);
    // First of all, whatever the node said meanwhile.
    events_.push_front(std::move(event));
    opened_ = true;
    Advance();
    return absl::OkStatus();
  }

  void Close() {
    if (!session_id_.empty()) node_->CloseSession(session_id_);
  }

  void End(grpc::Status status) {
    MutexLock lock(&mutex_);
    opened_ = true;
    ending_ = true;
    end_status_ = std::move(status);
    Advance();
  }

  // Drops what was not written yet; the call ends.
  void Abandon() KVTIER_REQUIRES(mutex_) {
    while (events_.size() > (writing_ ? 1U : 0U)) events_.pop_back();
    if (!ending_) end_status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled");
    ending_ = true;
  }

  // Starts the next write, or the end. gRPC only queues these; it calls back on its own threads.
  void Advance() KVTIER_REQUIRES(mutex_) {
    if (!opened_ || writing_ || finished_) return;
    if (!events_.empty()) {
      writing_ = true;
      StartWrite(&events_.front());
    } else if (ending_) {
      finished_ = true;
      Finish(end_status_);
    }
  }

  Node* const node_;
  const std::shared_ptr<SessionLink> link_;
  std::string session_id_;  // set before the first event

  Mutex mutex_;
  std::deque<v1::SessionEvent> events_ KVTIER_GUARDED_BY(mutex_);  // front: being written
  grpc::Status end_status_ KVTIER_GUARDED_BY(mutex_);
  bool opened_ KVTIER_GUARDED_BY(mutex_) = false;
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool ending_ KVTIER_GUARDED_BY(mutex_) = false;
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;
};

void SessionLink::OnDraining(const std::string& message) {
  v1::SessionEvent event;
  event.mutable_draining()->set_message(message);
  MutexLock lock(&mutex_);
  if (reactor_ != nullptr) reactor_->Push(std::move(event), /*last=*/false);
}

void SessionLink::OnRevoked(const std::string& message) {
  v1::SessionEvent event;
  event.mutable_revoked()->set_message(message);
  MutexLock lock(&mutex_);
  if (reactor_ != nullptr) reactor_->Push(std::move(event), /*last=*/true);
}

}  // namespace

grpc::ServerWriteReactor<v1::SessionEvent>* NewSessionReactor(
    const KvTierServiceOptions& options, Node* node, const v1::OpenSessionRequest& request) {
  return new SessionReactor(options, node, request);
}

}  // namespace kvtier
