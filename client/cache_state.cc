#include "client/cache_state.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/error.h"

namespace kvtier::client {
namespace {

// The device of a daemon that was killed stops within this time.
constexpr int kReleases = 10;
constexpr absl::Duration kReleaseInterval = absl::Milliseconds(20);

void SetLayers(const std::optional<LayerSpan>& layers, v1::LayerRange* range) {
  range->set_first_layer(layers->first_layer);
  range->set_layer_count(layers->layer_count);
}

}  // namespace

CacheState::CacheState(std::shared_ptr<Connection> connection, std::string name,
                       const v1::AttachCacheResponse& answer, CacheShape shape,
                       std::unique_ptr<Device> device, CacheMemory memory)
    : connection_(std::move(connection)),
      name_(std::move(name)),
      layout_(answer.layout()),
      device_info_(answer.device()),
      created_(answer.created()),
      blocks_kept_(answer.blocks_kept()),
      shape_(std::move(shape)),
      device_(std::move(device)),
      memory_(std::make_unique<const CacheMemory>(std::move(memory))) {}

CacheState::~CacheState() {
  Detach();
  // A forked child has neither the device's threads nor its driver.
  if (connection_->InForkedChild()) {
    (void)memory_.release();
    (void)device_.release();
  }
}

void CacheState::Detach() {
  if (connection_->InForkedChild()) return;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(detached_, true)) return;
  }
  // What is enqueued reads and writes memory that the daemon gives to others afterwards.
  if (!connection_->CheckCall().ok()) ReleaseWaits();
  (void)device_->Finish();
  v1::DetachCacheRequest request;
  Address(&request);
  // A daemon that is gone, or has ended the session, has nothing to be told.
  (void)connection_->Call("DetachCache", &v1::KvTier::Stub::DetachCache, request,
                          connection_->options().call_timeout);
  connection_->DisclaimCache(name_);
}

absl::StatusOr<int32_t> CacheState::SignalDaemon(DeviceStreamRef stream) {
  MutexLock lock(&mutex_);
  if (detached_) return DetachedError();
  // Numbers are cyclic, so that they may overflow.
  const auto number = static_cast<int32_t>(static_cast<uint32_t>(signalled_) + 1);
  absl::Status status = device_->Signal(&memory_->view().progress[0], number, stream);
  if (!status.ok()) return status;
  signalled_ = number;
  return number;
}

absl::Status CacheState::WaitForDaemon(int64_t ticket, DeviceStreamRef stream) {
  // Before the wait is there: whoever releases must know of it.
  int64_t awaited = awaited_.load();
  while (awaited < ticket && !awaited_.compare_exchange_weak(awaited, ticket)) {
  }
  {
    MutexLock lock(&mutex_);
    if (detached_) return DetachedError();
    absl::Status status =
        device_->Wait(&memory_->view().progress[1], static_cast<int32_t>(ticket), stream);
    if (!status.ok()) return status;
  }
  // It may have died since it answered.
  absl::Status status = connection_->CheckCall();
  if (!status.ok()) ReleaseWaits();
  return status;
}

void CacheState::ReleaseWaits() {
  const int64_t awaited = awaited_.load();
  if (awaited == 0) return;
  const std::atomic_ref<int32_t> word(memory_->view().progress[1]);
  const auto number = static_cast<uint32_t>(awaited);
  const auto now = static_cast<uint32_t>(word.load(std::memory_order_acquire));
  if (static_cast<int32_t>(now - number) >= 0) return;
  word.store(static_cast<int32_t>(number), std::memory_order_release);
}

void CacheState::KeepReleasingWaits() {
  for (int i = 0; i < kReleases; ++i) {
    ReleaseWaits();
    if (awaited_.load() == 0) return;
    absl::SleepFor(kReleaseInterval);
  }
}

absl::Status CacheState::DetachedError() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the Cache of '", name_, "' was destroyed, which detached it"));
}

absl::Status CacheState::CheckCall() const {
  if (absl::Status status = connection_->CheckCall(); !status.ok()) return status;
  MutexLock lock(&mutex_);
  return detached_ ? DetachedError() : absl::OkStatus();
}

absl::Status CacheState::CheckGroup(int32_t group) const {
  const auto groups = static_cast<int32_t>(shape_.groups.size());
  if (group >= 0 && group < groups) return absl::OkStatus();
  return ArgumentError("group", absl::StrCat(group), absl::StrCat("in 0..", groups - 1));
}

absl::Status CacheState::CheckRows(int32_t num_rows) const {
  if (num_rows >= 0 && num_rows <= shape_.step_rows) return absl::OkStatus();
  return ArgumentError("num_rows", absl::StrCat(num_rows),
                       absl::StrCat("in 0..", shape_.step_rows, ", the rows of the step buffers"));
}

absl::Status CacheState::CheckLayers(int32_t group, const std::optional<LayerSpan>& layers) const {
  if (absl::Status status = CheckGroup(group); !status.ok()) return status;
  if (!layers.has_value()) return absl::OkStatus();
  const auto count = static_cast<int32_t>(shape_.groups[group].layers.size());
  if (layers->first_layer >= 0 && layers->layer_count >= 0 && layers->first_layer <= count &&
      layers->layer_count <= count - layers->first_layer) {
    return absl::OkStatus();
  }
  return ArgumentError("layers",
                       absl::StrCat(layers->layer_count, " from layer ", layers->first_layer),
                       absl::StrCat("inside the ", count, " layers of group ", group));
}

absl::StatusOr<v1::SwapInRequest> CacheState::SwapInMessage(int32_t group, int32_t num_rows,
                                                            const SwapInOptions& options,
                                                            bool wait) const {
  if (absl::Status status = CheckLayers(group, options.layers); !status.ok()) return status;
  if (absl::Status status = CheckRows(num_rows); !status.ok()) return status;
  v1::SwapInRequest message;
  Address(&message);
  message.set_group_index(group);
  message.set_use_slots(options.use_slots);
  if (options.layers.has_value()) SetLayers(options.layers, message.mutable_layers());
  message.mutable_step()->set_num_rows(num_rows);
  message.set_wait(wait);
  return message;
}

absl::StatusOr<v1::ReplayPlanRequest> CacheState::ReplayPlanMessage(
    int32_t group, int32_t num_rows, const std::optional<LayerSpan>& layers, bool wait) const {
  if (absl::Status status = CheckLayers(group, layers); !status.ok()) return status;
  if (absl::Status status = CheckRows(num_rows); !status.ok()) return status;
  v1::ReplayPlanRequest message;
  Address(&message);
  message.set_group_index(group);
  if (layers.has_value()) SetLayers(layers, message.mutable_layers());
  message.set_num_rows(num_rows);
  message.set_wait(wait);
  return message;
}

absl::StatusOr<v1::BackupRequest> CacheState::BackupMessage(int32_t num_rows, bool wait) const {
  if (absl::Status status = CheckRows(num_rows); !status.ok()) return status;
  v1::BackupRequest message;
  Address(&message);
  message.mutable_step()->set_num_rows(num_rows);
  message.set_wait(wait);
  return message;
}

v1::WaitTicketRequest CacheState::WaitTicketMessage(int64_t ticket) const {
  v1::WaitTicketRequest message;
  Address(&message);
  message.set_ticket(ticket);
  return message;
}

}  // namespace kvtier::client
