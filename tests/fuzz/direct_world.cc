#include "tests/fuzz/direct_world.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpc/grpc.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/device/cpu/cpu_backend.h"

namespace kvtier::fuzz {
namespace {

// Room for three caches, so that a fourth finds none.
constexpr int64_t kPoolBytes = 3 * kPoolAlignmentBytes;
// Few enough to be reached.
constexpr int32_t kSessions = 6;
constexpr int32_t kCaches = 4;
constexpr int32_t kOperationsInFlight = 12;
constexpr int32_t kControlQueue = 4;
constexpr UnreadAnswers::Limits kUnread = {
    .bytes_max = 1 << 18, .bytes_of_all_max = 1 << 19, .deaf_bytes_min = 1 << 15};
// Only what hangs waits so long.
constexpr absl::Duration kPatience = absl::Seconds(20);

// For all programs of the process that go well: its pages are touched once.
std::unique_ptr<HostPool>& Pool() {
  static std::unique_ptr<HostPool> pool;
  return pool;
}

HostPool* StartedPool() {
  if (Pool() == nullptr) {
    static DeviceBackend* const backend = MakeCpuBackend({})->release();
    Pool() = *HostPool::Create({.size_bytes = kPoolBytes,
                                .huge_pages = HugePages::kNever,
                                .touch_threads = 1,
                                .chunk_bytes = kPoolBytes},
                               backend);
    Pool()->Start([](int64_t, int64_t) {});
    Pool()->WaitReady(absl::InfiniteFuture()).IgnoreError();
  }
  return Pool().get();
}

}  // namespace

const std::vector<Caller>& Callers() {
  // Numbers that no descriptor of this process has: connections that are gone, for all the peer
  // table knows. Two workers of different users, who may look, who may do all, one of whom nothing
  // is known; over TLS one who may look, one who may do all, and one who has shown no name.
  static const std::vector<Caller> callers = {
      {"fd:900001", {.pid = 11, .uid = 1000, .gids = {1000, 50}}},
      {"fd:900002", {.pid = 12, .uid = 1001, .gids = {1001}}},
      {"fd:900003", {.pid = 13, .uid = 1002, .gids = {1002, 50}}, "", Role::kViewer},
      {"fd:900004", {.pid = 14, .uid = 0, .gids = {0}}, "", Role::kOperator},
      {"fd:900005", {}},
      {"ipv4:127.0.0.1:4711", {}, "viewer.example", Role::kViewer},
      {"ipv4:127.0.0.1:4712", {}, "operator.example", Role::kOperator},
      {"ipv4:127.0.0.1:4713", {}},
  };
  return callers;
}

DirectWorld::DirectWorld()
    : pool_(StartedPool()), peers_(PeerLimits{.connections_max = 64, .per_process_max = 16}) {
  // Else each alarm starts gRPC's threads and ends them.
  static const bool kept = (grpc_init(), true);
  (void)kept;
  log_.SetLevel(LogLevel::kError);
  for (const Caller& caller : Callers()) {
    int fd = -1;
    if (caller.identity.uid >= 0 && absl::SimpleAtoi(caller.peer.substr(3), &fd)) {
      peers_.Add(fd, caller.identity);
    }
  }
  access_ = std::make_unique<DirectAccess>(&peers_,
                                           AccessRules{.viewer_uids = {1002},
                                                       .operator_uids = {0},
                                                       .tls_viewers = {"viewer.example"},
                                                       .tls_operators = {"operator.example"}},
                                           /*tls=*/true);
  StartNode();
}

DirectWorld::~DirectWorld() {
  machine_.SetNode(nullptr);
  pending_.clear();
  executor_.reset();
  node_.reset();
  if (!failure_.ok()) Pool().reset();
}

void DirectWorld::StartNode() {
  node_ = std::make_unique<Node>(NodeOptions{.version = "1.2.3",
                                             .sessions_max = kSessions,
                                             .caches_max = kCaches,
                                             .operations_in_flight_max = kOperationsInFlight,
                                             .reaper_threads = 0},
                                 &machine_, &machine_.backend(), pool_);
  machine_.SetNode(node_.get());
  executor_ = *ControlExecutor::Start({.threads = 0, .queue_max = kControlQueue});
  unread_answers_ = std::make_shared<UnreadAnswers>(kUnread, &machine_);
  const std::vector<DeviceInfo> devices = machine_.backend().Devices();
  context_ = {.node = node_.get(),
              .open_calls = &open_calls_,
              .call_log = &call_log_,
              .unread_answers = unread_answers_.get(),
              .log = &log_,
              .version = "1.2.3",
              .fd_socket_path = "k.sock.fd",
              .devices = devices};
  admin_context_ = {.node = node_.get(),
                    .pool = pool_,
                    .log = &log_,
                    .call_log = &call_log_,
                    .history = &history_,
                    .executor = executor_.get(),
                    .access = access_.get(),
                    .version = "1.2.3",
                    .devices = devices,
                    .listen_addresses = [] { return std::vector<std::string>{"unix:k.sock"}; },
                    .metrics_address = [] { return std::string(); },
                    .not_ready_reason = [] { return std::string(); },
                    .drain = [this](absl::string_view message) { node_->Drain(message); }};
  // Handlers are called without gRPC: nothing comes through it.
  const CallDoor door = {.peers = &peers_, .log = &call_log_};
  kv_tier_ =
      std::make_unique<KvTierService>(door, &context_, &machine_, access_.get(), executor_.get());
  admin_ = std::make_unique<AdminService>(door, &admin_context_);
}

void DirectWorld::Fail(absl::string_view what) {
  if (failure_.ok()) failure_ = absl::InternalError(what);
}

absl::Status DirectWorld::Play(const Program& program, Played* played) {
  played_ = played;
  said_ = program.SerializeAsString();
  for (const Call& call : program.calls()) {
    ++played->operations;
    const Holdings before = Look();
    alone_ = pending_.empty();
    errors_seen_ = lease_lost_ = false;
    PlayCall(call);
    if (failure_.ok()) Check(call, before);
    if (!failure_.ok()) break;
  }
  EndAll();
  if (failure_.ok()) CheckBaseline();
  return failure_;
}

void DirectWorld::PlayCall(const Call& call) {
  switch (call.call_case()) {
    case Call::CALL_NOT_SET:
      return;
    case Call::kCloseSession:
      return CloseSession(call.close_session().session());
    case Call::kAdvance:
      machine_.Advance(absl::Milliseconds(call.advance().milliseconds() & ((1 << 20) - 1)));
      node_->EndExpiredCaches();
      unread_answers_->FindDeaf();
      history_.Record(*admin_->ReadStats(""));
      return;
    case Call::kStepDevice:
      for (int i = call.step_device().count() & 7; i >= 0; --i) {
        machine_.Step(static_cast<uint32_t>(call.step_device().stream()));
      }
      return Settle(/*device=*/false);
    case Call::kFailDevice:
      return machine_.plan().FailNthCall(
          1 + (call.fail_device().number() & 15),
          MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected"));
    case Call::kPoke:
      return PlayPoke(call.poke());
    default:
      return PlayRequest(call);
  }
}

// A descriptor is redeemed when it is first written to; by somebody else it is not to be had.
void DirectWorld::PlayPoke(const Poke& poke) {
  if (attachments_.empty()) return;
  Attachment& attachment =
      attachments_[static_cast<uint32_t>(poke.attachment()) % attachments_.size()];
  if (attachment.segments.empty()) return;
  const size_t number = static_cast<uint32_t>(poke.segment()) % attachment.segments.size();
  const v1::Segment& segment = attachment.segments[number];
  UniqueFd& descriptor = attachment.descriptors[number];
  if (!descriptor.valid()) {
    const size_t stranger = (attachment.caller + 1) % 2;
    if (node_->RedeemToken(segment.fd_token(), Callers()[stranger].identity).ok()) {
      return Fail("a descriptor for another user");
    }
    auto redeemed = node_->RedeemToken(segment.fd_token(), Callers()[attachment.caller].identity);
    if (!redeemed.ok()) return;  // the session has ended
    descriptor = *std::move(redeemed);
  }
  std::string bytes;
  for (const int32_t word : poke.words()) {
    bytes.append(reinterpret_cast<const char*>(&word), poke.halves() ? 2 : sizeof(word));
  }
  const auto room = static_cast<uint64_t>(std::max<int64_t>(segment.size_bytes(), 1));
  uint64_t at = static_cast<uint32_t>(poke.offset()) % room;
  for (int i = poke.times() & 1023; i >= 0 && !bytes.empty() && at + bytes.size() <= room; --i) {
    const auto place = static_cast<off_t>(static_cast<uint64_t>(segment.offset_bytes()) + at);
    const ssize_t written = pwrite(descriptor.get(), bytes.data(), bytes.size(), place);
    if (segment.read_only() && written >= 0) return Fail("a worker can write what is read-only");
    at += bytes.size();
  }
}

void DirectWorld::CloseSession(int32_t number) {
  if (sessions_.empty()) return;
  EndSession(&sessions_[static_cast<uint32_t>(number) % sessions_.size()]);
}

void DirectWorld::EndSession(Session* session) {
  if (session->stream == nullptr) return;
  session->stream->Break();
  session->stream->Cancel();
  while (session->stream->React()) {
  }
  if (!session->stream->done()) return Fail("a session's call does not end");
  session->stream.reset();
}

bool DirectWorld::ReactAll() {
  bool moved = false;
  for (Session& session : sessions_) {
    if (session.stream == nullptr) continue;
    moved |= session.stream->React();
    if (session.stream->done()) session.stream.reset();
  }
  std::vector<Pending> pending = std::exchange(pending_, {});
  for (Pending& one : pending) {
    if (Conclude(&one)) {
      moved = true;
    } else {
      pending_.push_back(std::move(one));
    }
  }
  return moved;
}

void DirectWorld::Settle(bool device) {
  while (executor_->RunOne()) {
  }
  if (device) machine_.Settle();
  while (ReactAll()) {
  }
}

void DirectWorld::EndAll() {
  machine_.plan().Clear();
  machine_.SetWeather(simulation::Weather::kPrompt, 1);
  Settle(/*device=*/true);
  for (auto& [caller, steps] : steps_) EndSteps(&steps);
  for (Pending& one : pending_) {
    // An alarm of gRPC's ends it, soon.
    one.call->Cancel();
    if (!one.call->WaitUntilFinished(kPatience)) Fail(absl::StrCat(one.name, " hangs"));
  }
  Settle(/*device=*/true);
  for (Session& session : sessions_) EndSession(&session);
  if (!pending_.empty()) Fail(absl::StrCat(pending_.front().name, " does not end"));
  machine_.Settle();
}

void DirectWorld::CheckBaseline() {
  if (!node_->Sessions().empty()) Fail("sessions are left");
  if (node_->DeviceBytesUsed(kCpuDeviceUuid) != 0) Fail("device memory is left");
  // What a worker had retained stays until its time is over; nothing else does.
  int64_t retained = 0;
  const auto snapshot = node_->Snapshot("");
  for (const CacheSnapshot& cache : snapshot->caches) {
    if (!cache.expires_time.has_value()) Fail("a cache has neither sessions nor an end");
    retained += cache.host_bytes;
  }
  if (pool_->stats().used_bytes != retained) Fail("memory of the pool is left");
  if (unread_answers_->bytes() != 0) Fail("places of answers are left");
  if (!open_calls_.Names().empty()) Fail("calls are still at work");
  machine_.Advance(absl::Hours(2));
  node_->EndExpiredCaches();
  machine_.Settle();
  if (pool_->stats().used_bytes != 0) Fail("a cache outlives its time");
}

}  // namespace kvtier::fuzz
