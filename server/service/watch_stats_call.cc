#include "server/service/watch_stats_call.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "server/core/mutex.h"
#include "server/service/wire_error.h"

namespace kvtier {
namespace {

using Reactor = grpc::ServerWriteReactor<v1::GetStatsResponse>;

// Always either writing or waiting for the alarm, until it finishes; so that what ends a write or
// a wait can decide alone what comes next.
class WatchStatsCall final : public Reactor {
 public:
  WatchStatsCall(const CallRecord& record, absl::Duration interval,
                 std::function<absl::StatusOr<std::shared_ptr<const v1::GetStatsResponse>>()> read)
      : record_(record),
        interval_(interval),
        read_(std::move(read)),
        // gRPC's alarms know the machine's clock only.
        next_(absl::Now()) {
    Write();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      End(grpc::Status::CANCELLED);
      return;
    }
    // From tick to tick, and never to one that has passed.
    next_ = std::max(next_ + interval_, absl::Now());
    {
      MutexLock lock(&mutex_);
      waiting_ = true;
      if (cancelled_) next_ = absl::Now();
    }
    alarm_.Set(absl::ToChronoTime(next_), [this](bool /*expired*/) { OnAlarm(); });
    // The cancellation may have come before the alarm was set, and cancelled nothing.
    CancelAlarm();
  }

  void OnCancel() override {
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    CancelAlarm();
  }

  void OnDone() override { delete this; }

 private:
  ~WatchStatsCall() override = default;

  void End(const grpc::Status& status) {
    record_.End(status);
    Finish(status);
  }

  void Write() {
    absl::StatusOr<std::shared_ptr<const v1::GetStatsResponse>> stats = read_();
    if (!stats.ok()) {
      End(ToWire(stats.status()));
      return;
    }
    response_ = *std::move(stats);
    StartWrite(response_.get());
  }

  void OnAlarm() {
    bool cancelled = false;
    {
      MutexLock lock(&mutex_);
      waiting_ = false;
      cancelled = cancelled_;
    }
    if (cancelled) {
      End(grpc::Status::CANCELLED);
    } else {
      Write();
    }
  }

  // Makes the alarm ring now if the call is cancelled.
  void CancelAlarm() KVTIER_EXCLUDES(mutex_) {
    // Under the lock, because once the alarm has rung the call may be gone. An alarm's callback
    // runs on a thread of its own, never inside Cancel.
    MutexLock lock(&mutex_);
    if (waiting_ && cancelled_) alarm_.Cancel();
  }

  const CallRecord record_;
  const absl::Duration interval_;
  const std::function<absl::StatusOr<std::shared_ptr<const v1::GetStatsResponse>>()> read_;
  std::shared_ptr<const v1::GetStatsResponse> response_;  // of the write under way
  absl::Time next_;                                       // when the next answer is due
  grpc::Alarm alarm_;

  Mutex mutex_;  // rank: a leaf
  bool waiting_ KVTIER_GUARDED_BY(mutex_) = false;
  bool cancelled_ KVTIER_GUARDED_BY(mutex_) = false;
};

}  // namespace

Reactor* NewWatchStatsCall(
    const CallRecord& record, absl::Duration interval,
    std::function<absl::StatusOr<std::shared_ptr<const v1::GetStatsResponse>>()> read) {
  return new WatchStatsCall(record, interval, std::move(read));
}

}  // namespace kvtier
