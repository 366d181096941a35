#include "server/device/conformance/drain.h"

#include <memory>
#include <utility>

#include "server/core/mutex.h"

namespace kvtier {

absl::Status Drain(DeviceStream& stream) {
  // Shared with the callback, which may still hold the lock when the waiting thread goes on.
  struct Arrival {
    Mutex mutex;  // rank: leaf
    CondVar changed;
    bool done KVTIER_GUARDED_BY(mutex) = false;
    absl::Status status KVTIER_GUARDED_BY(mutex);
  };
  const auto arrival = std::make_shared<Arrival>();
  const absl::Status enqueued = stream.Notify([arrival](absl::Status status) {
    MutexLock lock(&arrival->mutex);
    arrival->status = std::move(status);
    arrival->done = true;
    arrival->changed.NotifyAll();
  });
  if (!enqueued.ok()) return enqueued;
  MutexLock lock(&arrival->mutex);
  while (!arrival->done) arrival->changed.Wait(&arrival->mutex);
  return arrival->status;
}

}  // namespace kvtier
