#include "client/cache.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cache_state.h"
#include "client/device.h"
#include "client/error.h"
#include "kernels/cpu/executor.h"
#include "kernels/stats_block.h"

namespace kvtier::client {
namespace {

// Between two tries while the pool is being pinned, where the daemon does not say.
constexpr absl::Duration kPoolRetryDelay = absl::Milliseconds(100);
constexpr int kStatsCopiesMax = 4;

// The daemon's device that `uuid` names; an empty name is the only one's. Null: the daemon has to
// say what is wrong with it.
const v1::Device* FindDevice(const v1::SessionOpened& opened, const std::string& uuid) {
  if (uuid.empty() && opened.devices_size() == 1) return &opened.devices(0);
  for (const v1::Device& device : opened.devices()) {
    if (!uuid.empty() && device.uuid() == uuid) return &device;
  }
  return nullptr;
}

absl::StatusOr<v1::AttachCacheResponse> CallAttach(const Connection& connection,
                                                   const v1::AttachCacheRequest& request,
                                                   const AttachOptions& options) {
  const absl::Time pool_deadline = absl::Now() + options.wait_for_pool;
  for (;;) {
    absl::StatusOr<v1::AttachCacheResponse> answer = connection.Call(
        "AttachCache", &v1::KvTier::Stub::AttachCache, request, options.attach_timeout);
    const absl::Duration left = pool_deadline - absl::Now();
    if (ErrorReasonOf(answer.status()) != "POOL_PINNING" || left <= absl::ZeroDuration()) {
      return answer;
    }
    const absl::Duration delay = RetryDelayOf(answer.status()).value_or(kPoolRetryDelay);
    if (connection.WaitUntilEnded(std::min(left, delay))) return connection.CheckCall();
  }
}

}  // namespace

absl::StatusOr<Cache> Cache::Attach(const Session& session, const AttachOptions& options) {
  const std::shared_ptr<Connection>& connection = session.connection();
  if (options.kernel_threads < 1 || options.kernel_threads > cpu::Executor::kThreadsMax) {
    return ArgumentError("kernel_threads", absl::StrCat(options.kernel_threads),
                         absl::StrCat("in 1..", cpu::Executor::kThreadsMax));
  }
  if (options.attach_timeout <= absl::ZeroDuration()) {
    return ArgumentError("attach_timeout", absl::FormatDuration(options.attach_timeout), "> 0");
  }
  if (absl::Status status = connection->CheckCall(); !status.ok()) return status;
  if (!connection->ClaimCache(options.cache)) {
    return MakeError(absl::StatusCode::kAlreadyExists, "ID_CONFLICT",
                     absl::StrCat("this session is attached to the cache '", options.cache,
                                  "' already; use that Cache, or destroy it first"),
                     {{"cache", options.cache}});
  }
  absl::Cleanup disclaim = [&] { connection->DisclaimCache(options.cache); };
  std::unique_ptr<Device> device;
  const v1::Device* info = FindDevice(connection->opened(), options.device_uuid);
  if (info != nullptr) {
    absl::StatusOr<std::unique_ptr<Device>> opened = OpenDevice(*info, options.kernel_threads);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }

  v1::AttachCacheRequest request;
  request.set_session_id(session.id());
  request.set_cache(options.cache);
  *request.mutable_layout() = options.layout;
  request.set_device_uuid(options.device_uuid);
  if (options.retain.has_value()) *request.mutable_retain() = *options.retain;
  if (options.share.has_value()) *request.mutable_share() = *options.share;
  request.set_replace_kept(options.replace_kept);
  absl::StatusOr<v1::AttachCacheResponse> answer = CallAttach(*connection, request, options);
  if (!answer.ok()) return answer.status();
  absl::Cleanup detach = [&] {
    v1::DetachCacheRequest undo;
    undo.set_session_id(session.id());
    undo.set_cache(options.cache);
    (void)connection->Call("DetachCache", &v1::KvTier::Stub::DetachCache, undo,
                           connection->options().call_timeout);
  };

  if (absl::Status status = CheckLayoutGiven(options.layout, answer->layout()); !status.ok()) {
    return status;
  }
  absl::StatusOr<CacheShape> shape = CacheShapeOf(answer->layout());
  if (!shape.ok()) return shape.status();
  if (device == nullptr || answer->device().uuid() != info->uuid()) {
    return MalformedAnswer(absl::StrCat("a cache on device ", answer->device().uuid()));
  }
  absl::StatusOr<CacheMemory> memory = CacheMemory::Map(
      *answer, *shape, device.get(),
      [&connection](const std::string& token) { return connection->RedeemToken(token); });
  if (!memory.ok()) return memory.status();
  if (absl::Status status = device->Reserve(*shape); !status.ok()) return status;
  std::move(detach).Cancel();
  std::move(disclaim).Cancel();
  auto state = std::make_shared<CacheState>(connection, options.cache, *answer, *std::move(shape),
                                            std::move(device), *std::move(memory));
  connection->OnEnd(options.cache, [weak = std::weak_ptr<CacheState>(state)] {
    if (const auto cache = weak.lock()) cache->KeepReleasingWaits();
  });
  return Cache(std::move(state));
}

Cache::Cache(std::shared_ptr<CacheState> state) : state_(std::move(state)) {}

Cache::Cache(Cache&& other) noexcept = default;

Cache& Cache::operator=(Cache&& other) noexcept {
  if (this == &other) return *this;
  if (state_ != nullptr) state_->Detach();
  state_ = std::move(other.state_);
  return *this;
}

Cache::~Cache() {
  if (state_ != nullptr) state_->Detach();
}

const std::string& Cache::name() const { return state_->name(); }
const v1::CacheLayout& Cache::layout() const { return state_->layout(); }
const v1::Device& Cache::device() const { return state_->device_info(); }
bool Cache::created() const { return state_->created(); }
int32_t Cache::blocks_kept() const { return state_->blocks_kept(); }
const CacheView& Cache::view() const { return state_->memory().view(); }

Counts Cache::counts(int32_t group) const {
  Counts counts;
  if (!state_->CheckGroup(group).ok()) return counts;
  const StatsBlock* stats = view().groups[group].stats;
  if (state_->device().host_readable()) {
    ReadCounts(stats, &counts);
    return counts;
  }
  // A kernel may be adding to it while it is copied; ReadCounts says whether one was.
  StatsBlock copy;
  for (int i = 0; i < kStatsCopiesMax; ++i) {
    if (!state_->device().Read(&copy, stats, sizeof(copy)).ok()) return {};
    if (ReadCounts(&copy, &counts)) break;
  }
  return counts;
}

absl::StatusOr<Request> Cache::Admit(absl::string_view request_id, int32_t reserve_blocks) {
  v1::AdmitRequestRequest message;
  message.set_request_id(std::string(request_id));
  message.set_reserve_blocks(reserve_blocks);
  absl::StatusOr<v1::AdmitRequestResponse> answer =
      state_->Call("AdmitRequest", &v1::KvTier::Stub::AdmitRequest, std::move(message));
  if (!answer.ok()) return answer.status();
  // The region becomes an index into the block table.
  if (answer->region() < 0 || answer->region() >= state_->shape().max_requests) {
    return MalformedAnswer(absl::StrCat("AdmitRequest gave region ", answer->region(), " of ",
                                        state_->shape().max_requests));
  }
  return Request(state_, std::string(request_id), answer->region());
}

absl::StatusOr<int64_t> Cache::InvalidateBlocks(std::span<const int32_t> blocks) {
  v1::InvalidateBlocksRequest message;
  message.mutable_block_ids()->Add(blocks.begin(), blocks.end());
  absl::StatusOr<v1::InvalidateBlocksResponse> answer =
      state_->Call("InvalidateBlocks", &v1::KvTier::Stub::InvalidateBlocks, std::move(message));
  if (!answer.ok()) return answer.status();
  return answer->invalidated_copies();
}

absl::StatusOr<Ticket> Cache::SwapInRpc(int32_t group, int32_t num_rows,
                                        const SwapInOptions& options, bool wait) {
  absl::StatusOr<v1::SwapInRequest> message = state_->SwapInMessage(group, num_rows, options, wait);
  if (!message.ok()) return message.status();
  return state_->CallOnStream<Ticket>("SwapIn", &v1::KvTier::Stub::SwapIn, *std::move(message),
                                      options.device_stream);
}

absl::StatusOr<Ticket> Cache::ReplayPlanRpc(int32_t group, int32_t num_rows,
                                            const std::optional<LayerSpan>& layers, bool wait,
                                            DeviceStreamRef device_stream) {
  absl::StatusOr<v1::ReplayPlanRequest> message =
      state_->ReplayPlanMessage(group, num_rows, layers, wait);
  if (!message.ok()) return message.status();
  return state_->CallOnStream<Ticket>("ReplayPlan", &v1::KvTier::Stub::ReplayPlan,
                                      *std::move(message), device_stream);
}

absl::StatusOr<Ticket> Cache::BackupRpc(int32_t num_rows, bool wait,
                                        DeviceStreamRef device_stream) {
  absl::StatusOr<v1::BackupRequest> message = state_->BackupMessage(num_rows, wait);
  if (!message.ok()) return message.status();
  return state_->CallOnStream<Ticket>("Backup", &v1::KvTier::Stub::Backup, *std::move(message),
                                      device_stream);
}

absl::StatusOr<int64_t> Cache::WaitTicket(int64_t ticket) {
  absl::StatusOr<v1::WaitTicketResponse> answer =
      state_->Call("WaitTicket", &v1::KvTier::Stub::WaitTicket, state_->WaitTicketMessage(ticket));
  if (!answer.ok()) return answer.status();
  return answer->completed_ticket();
}

}  // namespace kvtier::client
