#include "tests/load/hostile_calls.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "tests/load/http2.h"
#include "tests/load/pace.h"

namespace kvtier::load {
namespace {

constexpr char kCache[] = "hostile";
constexpr absl::Duration kTick = absl::Milliseconds(100);
// 1,024 rows for nobody: a request of some kilobytes, an answer of four megabytes.
constexpr int32_t kTopK = 2048, kRows = 1024;

v1::SwapInRequest LargeStep(const std::string& session_id) {
  v1::SwapInRequest request;
  request.set_session_id(session_id);
  request.set_cache(kCache);
  request.set_use_slots(true);
  for (int32_t i = 0; i < kRows; ++i) request.mutable_inline_()->add_rows();
  return request;
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// A session with a cache, on a connection of its own that is read as it should be.
class HostileSession {
 public:
  explicit HostileSession(const HostileOptions& options) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::KvTier::NewStub(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);
    context_.set_deadline(absl::ToChronoTime(options.end + absl::Seconds(5)));
  }
  ~HostileSession() {
    context_.TryCancel();
    if (events_ != nullptr) events_->Finish().IgnoreError();
  }

  absl::Status Attach() {
    v1::OpenSessionRequest open;
    open.set_client_name("hostile");
    events_ = stub_->OpenSession(&context_, open);
    v1::SessionEvent event;
    if (!events_->Read(&event)) return FromGrpc(events_->Finish());
    id_ = event.opened().session_id();
    v1::AttachCacheRequest attach;
    attach.set_session_id(id_);
    attach.set_cache(kCache);
    attach.mutable_layout()->set_block_size(64);
    attach.mutable_layout()->set_block_count(4);
    attach.mutable_layout()->set_max_requests(1);
    v1::LayerGroupLayout* const group = attach.mutable_layout()->add_groups();
    group->set_top_k(kTopK);
    group->set_hot_size(kTopK);
    group->add_layers()->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
    group->mutable_layers(0)->set_row_bytes(16);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    v1::AttachCacheResponse attached;
    return FromGrpc(stub_->AttachCache(&context, attach, &attached));
  }

  v1::KvTier::Stub& stub() { return *stub_; }
  const std::string& id() const { return id_; }
  // Why the daemon ended it; waits until it has, at most until the end of the attack.
  std::string WhyEnded() {
    std::string why;
    v1::SessionEvent event;
    while (events_->Read(&event)) {
      if (event.has_revoked()) why = event.revoked().message();
    }
    return why;
  }

 private:
  std::unique_ptr<v1::KvTier::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events_;
  std::string id_;
};

}  // namespace

absl::StatusOr<HostileResult> LeaveSessionsUnread(const HostileOptions& options) {
  HostileResult result;
  absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
  if (!peer.ok()) return peer.status();
  std::string words = Preface() + Settings({{kInitialWindow, 0}});
  for (int32_t i = 0; i < options.count; ++i) {
    const uint32_t stream = 2 * static_cast<uint32_t>(i) + 1;
    v1::OpenSessionRequest open;
    open.set_client_name("deaf");
    words += CallHeaders(stream, "/kvtier.v1.KvTier/OpenSession") + Message(stream, open);
  }
  if (absl::Status sent = SendAll(*peer, words); !sent.ok()) return sent;
  result.opened = result.held_max = 1;
  std::string answers;
  while (GoesOn(options, result) && result.closed == 0) {
    Pace(kTick);
    result.closed = ReadAvailable(*peer, &answers) ? 1 : 0;
    // What needs no window: calls that were begun, or ended.
    result.answered = CountFrames(answers, FrameKind::kHeaders);
  }
  return result;
}

absl::StatusOr<HostileResult> LeaveStepsUnread(const HostileOptions& options) {
  HostileResult result;
  while (absl::Now() < options.end) {
    HostileSession session(options);
    if (absl::Status status = session.Attach(); !status.ok()) return status;
    ++result.opened;
    v1::RunStepsRequest step;
    *step.mutable_swap_in() = LargeStep(session.id());
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(options.end));
    const auto steps = session.stub().RunSteps(&context);
    while (steps->Write(step)) ++result.answered;
    context.TryCancel();
    steps->Finish().IgnoreError();
    if (absl::Now() >= options.end) break;
    ++result.closed;
    result.last_word = session.WhyEnded();
  }
  result.held_max = 1;
  return result;
}

absl::StatusOr<HostileResult> LeaveAnswersUnread(const HostileOptions& options) {
  HostileResult result;
  while (absl::Now() < options.end) {
    HostileSession session(options);
    if (absl::Status status = session.Attach(); !status.ok()) return status;
    absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
    if (!peer.ok()) return peer.status();
    ++result.opened;
    absl::Status sent = SendAll(*peer, Preface() + Settings({{kInitialWindow, 0}}));
    for (int32_t i = 0; sent.ok() && i < options.count; ++i) {
      const uint32_t stream = 2 * static_cast<uint32_t>(i) + 1;
      sent = SendAll(*peer, CallHeaders(stream, "/kvtier.v1.KvTier/SwapIn") +
                                Message(stream, LargeStep(session.id())));
      result.answered += sent.ok() ? 1 : 0;
    }
    bool closed = !sent.ok();
    while (!closed && absl::Now() < options.end) {
      Pace(kTick);
      closed = IsClosed(*peer);
    }
    if (!closed) break;
    ++result.closed;
    result.last_word = session.WhyEnded();
  }
  result.held_max = 1;
  return result;
}

}  // namespace kvtier::load
