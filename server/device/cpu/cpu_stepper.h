// CPU device streams that stand still until a test moves them, one operation at a time.
//
//   auto stepper = std::make_shared<CpuStepper>();
//   auto backend = MakeCpuBackend({.stepper = stepper});
//   ... stream->Backup(a); stream->SwapIn(b); stream->Notify(done);
//   stepper->Step();    // the backup, on this thread
//   stepper->RunAll();  // the rest
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "server/core/mutex.h"
#include "server/device/cpu/operation_queue.h"

namespace kvtier {

// Thread-safe. A stream that is destroyed first does what is left on the destroying thread.
class CpuStepper {
 public:
  // Does the oldest operation (a Notify is one too) of the stream that was created as number
  // `stream`, from 0. False: it has none, is
  // gone, or waits for a number that has not come.
  bool Step(int stream = 0);
  // Steps all streams in turn until none can move; the number of steps.
  int RunAll();
  // From now on a stream that has nothing to do may be worked on here (DeviceStream::BeginHere),
  // or, as at first, may not: then all moves by steps alone.
  void SetWorksHere(bool works_here) { works_here_->store(works_here); }
  // Operations enqueued and not begun.
  int pending(int stream = 0) const;

 private:
  friend class CpuBackend;
  void Add(const std::shared_ptr<OperationQueue>& queue);
  std::shared_ptr<OperationQueue> Get(int stream) const;

  const std::shared_ptr<std::atomic<bool>> works_here_ = std::make_shared<std::atomic<bool>>(false);
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<OperationQueue>> queues_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
