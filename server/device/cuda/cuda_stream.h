// An ordered queue of work on one GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"
#include "server/device/backend.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/pinned_staging.h"

namespace kvtier {

// Kernels run on a non-blocking CUDA stream. A thread waits for the event of each Notify, brings
// what Read has read, and calls `done`. The scratch memory of the kernels is taken in stream order,
// grows with the largest call, and goes back with the device stream.
class CudaStream final : public DeviceStream {
 public:
  // `device` has a context. Errors: DEVICE_ERROR, DEVICE_LOST, RESOURCE_EXHAUSTED where the
  // system has no thread left.
  static absl::StatusOr<std::unique_ptr<DeviceStream>> Create(std::shared_ptr<CudaDevice> device);
  ~CudaStream() override;

  absl::Status SwapIn(const SwapInParams& params) override;
  absl::Status ReplayPlan(const ReplayPlanParams& params) override;
  absl::Status Backup(const BackupParams& params) override;
  absl::Status Invalidate(const InvalidateParams& params) override;
  absl::Status ResetRegion(const ResetRegionParams& params) override;
  absl::Status Write(uint8_t* destination, const void* source, int64_t bytes) override;
  absl::Status Read(void* destination, const uint8_t* source, int64_t bytes) override;
  absl::Status Notify(std::function<void(absl::Status)> done) override;
  absl::Status SignalWord(int32_t* word, int32_t value) override;
  absl::Status WaitWord(const int32_t* word, int32_t value) override;

 private:
  // A copy from staging to the caller's memory, made when its work is done.
  struct PendingRead {
    void* destination = nullptr;
    const void* staging = nullptr;
    int64_t bytes = 0;
  };
  struct Completion {
    cudaEvent_t event = nullptr;
    std::function<void(absl::Status)> done;
    std::vector<PendingRead> reads;
    std::vector<PinnedStaging::Chunk*> staging;
  };

  explicit CudaStream(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  absl::Status Start();
  absl::Status EnsureWorkspace(const GroupShape& shape, int32_t num_rows) KVTIER_REQUIRES(mutex_);
  absl::StatusOr<uint8_t*> TakeStaging(int64_t bytes) KVTIER_REQUIRES(mutex_);
  absl::StatusOr<cudaEvent_t> RecordEvent() KVTIER_REQUIRES(mutex_);
  void RunCompletions();
  void Complete(Completion completion);
  static void Bring(const std::vector<PendingRead>& reads);
  void Release() KVTIER_EXCLUDES(mutex_);

  const std::shared_ptr<CudaDevice> device_;
  PinnedStaging staging_;

  // Orders what goes onto the one CUDA stream, and so is held over the driver's calls; none of
  // them waits for the GPU. rank: before queue_mutex_ and staging_'s.
  Mutex mutex_;
  cudaStream_t stream_ KVTIER_GUARDED_BY(mutex_) = nullptr;
  void* workspace_ KVTIER_GUARDED_BY(mutex_) = nullptr;
  int64_t workspace_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  // Since the last Notify.
  std::vector<PendingRead> reads_ KVTIER_GUARDED_BY(mutex_);
  std::vector<PinnedStaging::Chunk*> lent_ KVTIER_GUARDED_BY(mutex_);

  Mutex queue_mutex_;  // rank: leaf; never held over a driver call
  CondVar queue_changed_;
  std::deque<Completion> queue_ KVTIER_GUARDED_BY(queue_mutex_);
  bool stopping_ KVTIER_GUARDED_BY(queue_mutex_) = false;
  Thread thread_;
  bool started_ = false;  // not changed after Create
};

}  // namespace kvtier
