#include "server/session/attachment.h"

#include <algorithm>
#include <utility>

#include "server/core/limits.h"
#include "server/core/status_macros.h"
#include "server/session/cache.h"
#include "server/session/errors.h"
#include "server/session/reaper.h"
#include "server/session/token_table.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

// On a stream that stands still: operations, and groups in all of them.
constexpr int64_t kOperationsHeldMax = 32, kGroupsHeldMax = 512;
// Neither a step nor a backup takes so long.
constexpr absl::Duration kStandstill = absl::Seconds(3);

}  // namespace

Attachment::Attachment(Options options, std::shared_ptr<Cache> cache)
    : options_(std::move(options)),
      cache_(std::move(cache)),
      use_(options_.device_use->Add(options_.device.uuid, options_.session_id)),
      requests_(options_.session_id, cache_->name(), cache_->layout().max_requests,
                cache_->layout().max_blocks_per_request, options_.clock),
      tickets_(options_.operations_in_flight_max),
      inline_bytes_(kInlineBytesInFlightMax),
      mirror_(static_cast<int>(cache_->layout().groups.size())) {}

absl::Status Attachment::Open(absl::Time deadline) {
  KVTIER_ASSIGN_OR_RETURN(tier_, HotTier::Create(cache_->layout(), cache_->host(),
                                                 options_.device.uuid, options_.backend));
  use_->AddBytes(tier_->device_bytes());
  const CacheMemory& memory = cache_->memory();
  SegmentHandles handles;
  KVTIER_RETURN_IF_ERROR(handles.AddFd(SegmentKind::kHostPool, memory.rows(), /*read_only=*/false));
  KVTIER_RETURN_IF_ERROR(handles.AddFd(SegmentKind::kBlockGeneration, memory.block_generation(),
                                       /*read_only=*/true));
  KVTIER_RETURN_IF_ERROR(handles.AddFd(SegmentKind::kBackedGeneration, memory.backed_generation(),
                                       /*read_only=*/false));
  KVTIER_RETURN_IF_ERROR(handles.AddDevice(SegmentKind::kHotBuffer, tier_->hot()));
  KVTIER_RETURN_IF_ERROR(handles.AddDevice(SegmentKind::kState, tier_->state()));
  KVTIER_RETURN_IF_ERROR(handles.AddDevice(SegmentKind::kStep, tier_->step()));
  KVTIER_ASSIGN_OR_RETURN(progress_, Progress::Create(HostReadable() ? nullptr : options_.backend));
  use_->SetProgress(progress_);
  KVTIER_RETURN_IF_ERROR(handles.AddFd(SegmentKind::kProgress,
                                       {.fd = &progress_->fd(), .size_bytes = Progress::kBytes},
                                       /*read_only=*/false));
  {
    MutexLock lock(&memory_mutex_);
    handles_ = std::move(handles);
  }
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream,
                          options_.backend->CreateStream(options_.device.uuid));
  {
    MutexLock lock(&enqueue_mutex_);
    stream_ = std::move(stream);
    passed_all_ = false;
  }
  const auto completions = std::make_shared<Completions>();
  const absl::Status enqueued = Enqueue(
      [](DeviceStream* stream, const HotTier& tier) { return tier.EnqueueInitialState(stream); },
      nullptr, completions->Expect());
  if (!enqueued.ok()) return enqueued;
  return completions->Wait(*options_.clock, deadline);
}

absl::Status Attachment::Enqueue(const Work& work, std::shared_ptr<void> context,
                                 std::function<void(absl::Status)> done, bool is_short) {
  {
    MutexLock lock(&enqueue_mutex_);
    const bool here = is_short && BeginHereLocked();
    const absl::Status run = RunLocked(work, context);
    if (here) EndHereLocked();
    KVTIER_RETURN_IF_ERROR(run);
    if (!here) {
      const absl::Status notified =
          NotifyLocked([context, done = std::move(done)](absl::Status status) { done(status); });
      if (!notified.ok() && context != nullptr) contexts_.push_back(std::move(context));
      return notified;
    }
  }
  done(absl::OkStatus());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Attachment::EnqueueOperation(
    OperationKind kind, std::optional<int> group, std::optional<int32_t> after_worker,
    const Work& work, std::shared_ptr<void> context,
    std::function<void(const absl::Status&, int64_t ticket)> done) {
  MutexLock lock(&enqueue_mutex_);
  KVTIER_RETURN_IF_ERROR(CheckRoomLocked(group.has_value()));
  struct Operation {
    std::shared_ptr<void> context;
    StatsMirror::Reading reading;
    absl::Time enqueued;
  };
  const auto operation = std::make_shared<Operation>();
  operation->enqueued = options_.clock->Now();
  operation->context = std::move(context);
  KVTIER_RETURN_IF_ERROR(RunLocked(
      [&](DeviceStream* stream, const HotTier& tier) -> absl::Status {
        if (HostReadable()) return work(stream, tier);
        if (after_worker.has_value()) {
          KVTIER_RETURN_IF_ERROR(progress_->Expect(*after_worker));
          KVTIER_RETURN_IF_ERROR(stream->WaitWord(progress_->worker_word(), *after_worker));
        }
        KVTIER_RETURN_IF_ERROR(work(stream, tier));
        return mirror_.Enqueue(stream, tier, group.value_or(0),
                               group.has_value() ? 1 : tier.group_count(), &operation->reading);
      },
      operation));
  const int64_t ticket = tickets_.Issue();
  absl::Status notified;
  if (!HostReadable()) {
    notified = stream_->SignalWord(progress_->daemon_word(), static_cast<int32_t>(ticket));
  }
  const bool signalled = notified.ok() && !HostReadable();
  if (notified.ok()) {
    notified = NotifyLocked([self = shared_from_this(), operation, ticket, kind,
                             done = std::move(done)](const absl::Status& status) {
      self->cache_->CountLatency(kind, self->options_.clock->Now() - operation->enqueued);
      if (status.ok()) self->mirror_.Arrive(operation->reading);
      self->tickets_.Complete(ticket, status, [&](const absl::Status& s) { done(s, ticket); });
    });
  }
  if (notified.ok()) return ticket;
  // The device does the work, and never says so: whoever asked learns of the error alone. A number
  // that the worker's stream may see is not given out again; the next ticket completes it.
  if (!signalled) tickets_.Withdraw();
  contexts_.push_back(operation);
  return notified;
}

// Before anything is enqueued: who is refused leaves nothing behind, however often.
absl::Status Attachment::CheckRoomLocked(bool is_of_one_group) const {
  const int64_t in_flight = tickets_.in_flight();
  if (in_flight >= options_.operations_in_flight_max) {
    return LimitReached("operations in flight for a session and cache",
                        options_.operations_in_flight_max, kBusyRetryDelay);
  }
  if (HostReadable() || stream_ == nullptr) return absl::OkStatus();
  // A driver that holds a thousand commands of a stream that stands still blocks who adds more, and
  // whoever comes after that one.
  const int64_t groups = is_of_one_group ? 1 : static_cast<int64_t>(cache_->layout().groups.size());
  const int64_t limit = std::min(kOperationsHeldMax, (kGroupsHeldMax + groups - 1) / groups);
  if (in_flight < limit) return absl::OkStatus();
  if (progress_->behind()) {
    return LimitReached("operations behind a number that the worker's stream has not written",
                        limit, kBusyRetryDelay);
  }
  if (use_->StandsStill(options_.clock->Now()) < kStandstill) return absl::OkStatus();
  return LimitReached("operations on a device that has ended none for three seconds", limit,
                      kBusyRetryDelay);
}

absl::Status Attachment::FlushTable() {
  MutexLock lock(&enqueue_mutex_);
  if (stream_ == nullptr || draining_) return SessionClosed(session_id());
  const bool here = BeginHereLocked();
  const absl::Status flushed = FlushTableLocked();
  if (here) EndHereLocked();
  return flushed;
}

void Attachment::WhenPassed(std::function<void()> passed) {
  {
    MutexLock lock(&enqueue_mutex_);
    if (!passed_all_ && !HasPassedLocked()) {
      waiting_.push_back(std::move(passed));
      // While it drains, EndStream comes soon, and runs what waits.
      if (!draining_) PassLocked();
      return;
    }
  }
  passed();
}

Counts Attachment::ReadCounts(int group) {
  if (HostReadable()) return tier_->ReadCounts(group);
  // The reaper's thread, since a driver that hangs must not hang who looks at statistics.
  if (!refreshing_.exchange(true)) {
    options_.reaper->Post([self = shared_from_this()] { self->RefreshMirror(); });
  }
  return mirror_.Get(group);
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> Attachment::Scratch(int64_t bytes) {
  int64_t present = 0;
  {
    MutexLock lock(&memory_mutex_);
    if (released_) return SessionClosed(session_id());
    if (!scratch_.empty()) present = scratch_.back()->size_bytes();
    if (present >= bytes) return scratch_.back();
  }
  // At least doubled, so that all the outgrown ones together are no larger than the last.
  KVTIER_ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceMemory> grown,
      options_.backend->Allocate(options_.device.uuid, "scratch", std::max(bytes, 2 * present)));
  std::shared_ptr<DeviceMemory> memory = std::move(grown);
  MutexLock lock(&memory_mutex_);
  if (released_) return SessionClosed(session_id());
  if (!scratch_.empty() && scratch_.back()->size_bytes() >= bytes) return scratch_.back();
  scratch_.push_back(memory);
  use_->AddBytes(memory->size_bytes());
  return memory;
}

void Attachment::Drain(std::function<void()> drained) {
  {
    MutexLock lock(&enqueue_mutex_);
    if (stream_ != nullptr && !draining_) {
      draining_ = true;
      // The last look.
      const auto reading = std::make_shared<StatsMirror::Reading>();
      if (!HostReadable()) {
        unnotified_ = true;
        contexts_.push_back(reading);
        mirror_.Enqueue(stream_.get(), *tier_, 0, tier_->group_count(), reading.get())
            .IgnoreError();
      }
      const auto arrived = [self = shared_from_this(), reading, drained](const absl::Status& s) {
        if (s.ok()) self->mirror_.Arrive(*reading);
        drained();
      };
      if (NotifyLocked(arrived).ok()) return;
    }
    draining_ = true;
  }
  drained();
}

void Attachment::EndStream() {
  std::unique_ptr<DeviceStream> stream;
  {
    MutexLock lock(&enqueue_mutex_);
    stream = std::move(stream_);
  }
  stream.reset();  // waits; its last callbacks run meanwhile
  Passed passed;
  std::vector<std::shared_ptr<void>> contexts;
  {
    MutexLock lock(&enqueue_mutex_);
    passed_all_ = true;
    passed = std::move(waiting_);
    contexts = std::move(contexts_);
  }
  for (const std::function<void()>& each : passed) each();
}

void Attachment::ReleaseDevice() {
  std::vector<std::shared_ptr<DeviceMemory>> scratch;
  SegmentHandles handles;
  {
    MutexLock lock(&memory_mutex_);
    released_ = true;
    scratch = std::move(scratch_);
    handles = std::move(handles_);
  }
  scratch.clear();
  use_->SetProgress(nullptr);
  progress_.reset();
  tier_.reset();
  use_->AddBytes(-device_bytes());
  use_->End();
}

absl::StatusOr<std::vector<SegmentInfo>> Attachment::IssueSegments(TokenTable* tokens) const {
  MutexLock lock(&memory_mutex_);
  if (released_) return SessionClosed(session_id());
  return handles_.Issue(session_id(), cache_->name(), tokens);
}

absl::Status Attachment::FlushTableLocked() {
  while (true) {
    std::optional<BlockTableImage::Change> change;
    requests_.EditTable([&](BlockTableImage& table) { change = table.TakeChange(); });
    if (!change.has_value()) return absl::OkStatus();
    const absl::Status written = tier_->EnqueueTableWrite(stream_.get(), change->region,
                                                          change->first_entry, change->block_ids);
    if (!written.ok()) {
      requests_.EditTable([&](BlockTableImage& table) { table.PutBack(*change); });
      return written;
    }
    unnotified_ = true;
    changes_.push_back(*std::move(change));
  }
}

absl::Status Attachment::RunLocked(const Work& work, const std::shared_ptr<void>& context) {
  if (stream_ == nullptr || draining_ || requests_.closed()) return SessionClosed(session_id());
  KVTIER_RETURN_IF_ERROR(FlushTableLocked());
  // A device that refuses everything must not make us keep ever more for it.
  if (contexts_.size() >= kContextsMax) {
    KVTIER_RETURN_IF_ERROR(NotifyLocked([](absl::Status) {}));
  }
  unnotified_ = true;
  const absl::Status done = work(stream_.get(), *tier_);
  // A part of the work may have been enqueued and use the context.
  if (!done.ok() && context != nullptr) contexts_.push_back(context);
  return done;
}

absl::Status Attachment::NotifyLocked(std::function<void(absl::Status)> done) {
  const auto carried = std::make_shared<Carried>();
  carried->passed.swap(waiting_);
  carried->contexts.swap(contexts_);
  carried->changes.swap(changes_);
  use_->Given(options_.clock->Now());
  const int64_t waits = progress_->expected_count();
  const absl::Status notified =
      stream_->Notify([self = shared_from_this(), progress = progress_, waits, carried,
                       done = std::move(done)](const absl::Status& status) {
        progress->Passed(waits);
        done(status);
        self->OnNotified(status, *carried);
        self->use_->Answered(self->options_.clock->Now());
      });
  if (!notified.ok()) {
    use_->Refused();
    waiting_.swap(carried->passed);
    contexts_.swap(carried->contexts);
    changes_.swap(carried->changes);
  } else {
    unnotified_ = false;
  }
  return notified;
}

// On a thread of the device: takes no lock under which the driver may be called.
void Attachment::OnNotified(const absl::Status& status, Carried& carried) {
  if (status.ok() || carried.changes.empty()) {
    for (const std::function<void()>& passed : carried.passed) passed();
  } else {
    // The block table may not have been written: what waits for that waits for another try.
    requests_.EditTable([&](BlockTableImage& table) {
      for (const BlockTableImage::Change& change : carried.changes) table.PutBack(change);
    });
    options_.reaper->PostRetry([self = shared_from_this(), passed = std::move(carried.passed)] {
      for (const std::function<void()>& each : passed) self->WhenPassed(each);
    });
  }
  carried = {};
}

void Attachment::PassLocked() {
  if (FlushTableLocked().ok() && NotifyLocked([](absl::Status) {}).ok()) return;
  if (retrying_) return;
  retrying_ = true;
  options_.reaper->PostRetry([self = shared_from_this()] { self->RetryPass(); });
}

void Attachment::RetryPass() {
  MutexLock lock(&enqueue_mutex_);
  retrying_ = false;
  if (waiting_.empty() || draining_ || passed_all_) return;
  PassLocked();
}

void Attachment::RefreshMirror() {
  const auto reading = std::make_shared<StatsMirror::Reading>();
  const absl::Status enqueued = Enqueue(
      [&](DeviceStream* stream, const HotTier& tier) {
        return mirror_.Enqueue(stream, tier, 0, tier.group_count(), reading.get());
      },
      reading,
      [self = shared_from_this(), reading](const absl::Status& status) {
        if (status.ok()) self->mirror_.Arrive(*reading);
        self->refreshing_ = false;
      });
  // The next look tries again.
  if (!enqueued.ok()) refreshing_ = false;
}

}  // namespace kvtier
