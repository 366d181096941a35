#include "server/service/session_call.h"

#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
#include "server/core/status_macros.h"
#include "server/service/from_proto.h"
#include "server/service/to_proto.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

using Reactor = grpc::ServerWriteReactor<v1::SessionEvent>;

// What the node tells, on its way to the client. Shared by the node and the call, whichever
// lives longer. At most three events ever come, so that nothing has to bound the queue.
//
// Operations on the reactor are decided under the lock and started outside of it; whoever decides
// one owns it, and the call does not end before it is done.
class EventStream final : public SessionObserver {
 public:
  EventStream(Reactor* reactor, const CallRecord& record) : reactor_(reactor), record_(record) {}

  // Nothing is written before this: `opened` is first, whatever the node told meanwhile.
  void Open(v1::SessionEvent opened) KVTIER_EXCLUDES(mutex_) {
    {
      MutexLock lock(&mutex_);
      events_.push_front(std::move(opened));
      opened_ = true;
    }
    Pump();
  }

  // Ends the call with `status`.
  void End(grpc::Status status) KVTIER_EXCLUDES(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (!ended_) {
        ended_ = true;
        status_ = std::move(status);
      }
      opened_ = true;
    }
    Pump();
  }

  void OnDraining(const std::string& message) override KVTIER_EXCLUDES(mutex_) {
    v1::SessionEvent event;
    event.mutable_draining()->set_message(ToUtf8(message));
    Push(std::move(event), /*last=*/false);
  }

  void OnRevoked(const std::string& message) override KVTIER_EXCLUDES(mutex_) {
    v1::SessionEvent event;
    event.mutable_revoked()->set_message(ToUtf8(message));
    Push(std::move(event), /*last=*/true);
  }

  void OnWriteDone(bool ok) KVTIER_EXCLUDES(mutex_) {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) Break();
    }
    Pump();
  }

  void OnCancel() KVTIER_EXCLUDES(mutex_) {
    {
      MutexLock lock(&mutex_);
      Break();
    }
    Pump();
  }

 private:
  void Push(v1::SessionEvent event, bool last) KVTIER_EXCLUDES(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (ended_) return;
      events_.push_back(std::move(event));
      ended_ = last;
    }
    Pump();
  }

  // Nobody reads any more.
  void Break() KVTIER_REQUIRES(mutex_) {
    events_.clear();
    ended_ = true;
    status_ = grpc::Status::CANCELLED;
  }

  void Pump() KVTIER_EXCLUDES(mutex_) {
    bool write = false, finish = false;
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      if (!opened_ || writing_ || finished_) return;
      if (!events_.empty()) {
        writing_event_ = std::move(events_.front());
        events_.pop_front();
        write = writing_ = true;
      } else if (ended_) {
        finish = finished_ = true;
        status = status_;
      }
    }
    if (write) reactor_->StartWrite(&writing_event_);
    if (!finish) return;
    record_.End(status);
    reactor_->Finish(status);
  }

  Reactor* const reactor_;
  const CallRecord record_;
  v1::SessionEvent writing_event_;  // of the write under way

  Mutex mutex_;  // rank: a leaf
  std::deque<v1::SessionEvent> events_ KVTIER_GUARDED_BY(mutex_);
  bool opened_ KVTIER_GUARDED_BY(mutex_) = false;
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool ended_ KVTIER_GUARDED_BY(mutex_) = false;
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;
  grpc::Status status_ KVTIER_GUARDED_BY(mutex_);
};

class SessionCall final : public Reactor {
 public:
  SessionCall(const SessionCallContext* context, const CallRecord& record,
              const absl::StatusOr<Peer>& peer, const v1::OpenSessionRequest& request)
      : context_(context),
        entry_(context->open_calls, record.method),
        events_(std::make_shared<EventStream>(this, record)) {
    absl::StatusOr<std::string> session_id = OpenAt(context->node, peer, request);
    if (!session_id.ok()) {
      Shared()->End(ToWire(session_id.status()));
      return;
    }
    session_id_ = *std::move(session_id);
    context_->log->Event("session_opened", {{"session_id", session_id_},
                                            {"client_name", request.client_name()},
                                            {"pid", peer->pid},
                                            {"uid", peer->uid}});
    Shared()->Open(Opened());
  }

  void OnWriteDone(bool ok) override { Shared()->OnWriteDone(ok); }

  void OnCancel() override {
    Close();
    Shared()->OnCancel();
  }

  void OnDone() override {
    Close();
    if (!session_id_.empty()) {
      context_->log->Event("session_closed", {{"session_id", session_id_}});
    }
    delete this;
  }

 private:
  ~SessionCall() override = default;

  absl::StatusOr<std::string> OpenAt(Node* node, const absl::StatusOr<Peer>& peer,
                                     const v1::OpenSessionRequest& request) {
    KVTIER_RETURN_IF_ERROR(peer.status());
    KVTIER_RETURN_IF_ERROR(context_->open_calls->CheckOpen());
    KVTIER_RETURN_IF_ERROR(CheckOpenSession(request));
    return node->OpenSession(request.client_name(), *peer, events_);
  }

  v1::SessionEvent Opened() const {
    v1::SessionEvent event;
    v1::SessionOpened* opened = event.mutable_opened();
    opened->set_session_id(session_id_);
    opened->set_boot_id(context_->node->boot_id());
    opened->set_fd_socket_path(context_->fd_socket_path);
    opened->set_daemon_version(context_->version);
    for (const DeviceInfo& device : context_->devices) *opened->add_devices() = ToProto(device);
    return event;
  }

  // Fences the session; the node does nothing if it is closed already.
  void Close() {
    if (!session_id_.empty()) context_->node->CloseSession(session_id_);
  }

  // By value: a reaction may start the operation that lets another thread end the call.
  std::shared_ptr<EventStream> Shared() const { return events_; }

  const SessionCallContext* const context_;
  const OpenCalls::Entry entry_;
  const std::shared_ptr<EventStream> events_;
  std::string session_id_;  // constant once the reactor is known to gRPC
};

}  // namespace

Reactor* NewSessionCall(const SessionCallContext* context, const CallRecord& record,
                        const absl::StatusOr<Peer>& peer, const v1::OpenSessionRequest& request) {
  return new SessionCall(context, record, peer, request);
}

}  // namespace kvtier
