#include "server/device/cuda/cuda_stream.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

absl::Status CheckCount(absl::string_view field, int64_t count) {
  if (count >= 0) return absl::OkStatus();
  return FieldInvalid(field, absl::StrCat(count), "at least 0");
}

absl::Status CheckWord(const int32_t* word) {
  if (word != nullptr && reinterpret_cast<uintptr_t>(word) % sizeof(int32_t) == 0) {
    return absl::OkStatus();
  }
  return FieldInvalid("word", absl::StrCat(reinterpret_cast<uintptr_t>(word)),
                      "an address that 4 divides");
}

// Sizes of which scratch memory can be computed without overflow. The kernels check the rest.
bool IsPlausible(const GroupShape& shape) {
  return shape.top_k >= 0 && shape.top_k <= kHotSizeMax && shape.hot_size >= 1 &&
         shape.hot_size <= kHotSizeMax && shape.region_count >= 1 && shape.rows_per_request >= 1 &&
         shape.rows_per_request < shape.region_stride &&
         int64_t{shape.region_count} * shape.region_stride <= INT32_MAX;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStream>> CudaStream::Create(
    std::shared_ptr<CudaDevice> device) {
  std::unique_ptr<CudaStream> stream(new CudaStream(std::move(device)));
  KVTIER_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::Status CudaStream::Start() {
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  KVTIER_RETURN_IF_ERROR(device_->CheckMemory(
      cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a CUDA stream", 0));
  KVTIER_ASSIGN_OR_RETURN(thread_, Thread::Start("kvtier-cuda", [this] { RunCompletions(); }));
  started_ = true;
  return absl::OkStatus();
}

CudaStream::~CudaStream() {
  // What lies behind the last Notify is waited for as well.
  if (started_) (void)Notify([](const absl::Status&) {});
  {
    MutexLock lock(&queue_mutex_);
    stopping_ = true;
    queue_changed_.NotifyAll();
  }
  thread_.Join();
  Release();
}

void CudaStream::Release() {
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  if (!context.current() || stream_ == nullptr) return;
  // Nothing is left to wait for, unless that last Notify failed. A lost device fails all of these.
  if (cudaStreamSynchronize(stream_) == cudaSuccess) Bring(reads_);
  if (workspace_ != nullptr) (void)cudaFreeAsync(workspace_, stream_);
  // So that the memory goes back to the device: its pool keeps what no wait has followed.
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
  staging_.FreeAll();
  (void)device_->Check(cudaGetLastError(), "ending a device stream");
}

absl::Status CudaStream::EnsureWorkspace(const GroupShape& shape, int32_t num_rows) {
  if (!IsPlausible(shape)) return device_->Check(cudaErrorInvalidValue, "the shape of a group");
  const int64_t bytes = cuda::WorkspaceBytes(shape, num_rows);
  if (bytes <= workspace_bytes_) return absl::OkStatus();
  constexpr char kPurpose[] = "scratch memory of a device stream";
  void* larger = nullptr;
  KVTIER_RETURN_IF_ERROR(device_->CheckMemory(
      cudaMallocAsync(&larger, static_cast<size_t>(bytes), stream_), kPurpose, bytes));
  const cudaError_t error = cudaMemsetAsync(larger, 0, static_cast<size_t>(bytes), stream_);
  if (error != cudaSuccess) {
    (void)cudaFreeAsync(larger, stream_);
    return device_->CheckMemory(error, kPurpose, bytes);
  }
  // In stream order: calls that were enqueued before still have the old one.
  if (workspace_ != nullptr) (void)cudaFreeAsync(workspace_, stream_);
  workspace_ = larger;
  workspace_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status CudaStream::SwapIn(const SwapInParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (params.num_rows == 0) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(EnsureWorkspace(params.shape, params.num_rows));
  return device_->Check(cuda::SwapIn(params, workspace_, stream_), "swap-in");
}

absl::Status CudaStream::ReplayPlan(const ReplayPlanParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (params.num_rows == 0) return absl::OkStatus();
  return device_->Check(cuda::ReplayPlan(params, stream_), "plan replay");
}

absl::Status CudaStream::Backup(const BackupParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (params.num_rows == 0) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(EnsureWorkspace(params.shape, params.num_rows));
  return device_->Check(cuda::Backup(params, stream_), "backup");
}

absl::Status CudaStream::Invalidate(const InvalidateParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("block_count", params.block_count));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (params.block_count == 0) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(EnsureWorkspace(params.shape, /*num_rows=*/1));
  return device_->Check(cuda::Invalidate(params, workspace_, stream_), "invalidation");
}

absl::Status CudaStream::ResetRegion(const ResetRegionParams& params) {
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  return device_->Check(cuda::ResetRegion(params, stream_), "region reset");
}

absl::StatusOr<uint8_t*> CudaStream::TakeStaging(int64_t bytes) {
  PinnedStaging::Piece piece;
  const cudaError_t error = staging_.Take(bytes, &piece);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return MakeError(
        absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
        absl::StrCat("host memory: no ", bytes, " pinned bytes for a copy to or from the device"),
        {{"limit", "pinned host memory"}, {"requested_bytes", absl::StrCat(bytes)}});
  }
  KVTIER_RETURN_IF_ERROR(device_->Check(error, "cudaHostAlloc"));
  lent_.push_back(piece.chunk);
  return piece.data;
}

absl::Status CudaStream::Write(uint8_t* destination, const void* source, int64_t bytes) {
  KVTIER_RETURN_IF_ERROR(CheckCount("bytes", bytes));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (bytes == 0) return absl::OkStatus();
  KVTIER_ASSIGN_OR_RETURN(uint8_t* const staging, TakeStaging(bytes));
  std::memcpy(staging, source, static_cast<size_t>(bytes));
  return device_->Check(cudaMemcpyAsync(destination, staging, static_cast<size_t>(bytes),
                                        cudaMemcpyHostToDevice, stream_),
                        "host to device copy");
}

absl::Status CudaStream::Read(void* destination, const uint8_t* source, int64_t bytes) {
  KVTIER_RETURN_IF_ERROR(CheckCount("bytes", bytes));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  if (bytes == 0) return absl::OkStatus();
  KVTIER_ASSIGN_OR_RETURN(uint8_t* const staging, TakeStaging(bytes));
  KVTIER_RETURN_IF_ERROR(device_->Check(
      cudaMemcpyAsync(staging, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
      "device to host copy"));
  reads_.push_back({destination, staging, bytes});
  return absl::OkStatus();
}

absl::Status CudaStream::Notify(std::function<void(absl::Status)> done) {
  Completion completion;
  completion.done = std::move(done);
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  KVTIER_ASSIGN_OR_RETURN(completion.event, RecordEvent());
  completion.reads = std::exchange(reads_, {});
  completion.staging = std::exchange(lent_, {});
  MutexLock queue_lock(&queue_mutex_);
  queue_.push_back(std::move(completion));
  queue_changed_.NotifyOne();
  return absl::OkStatus();
}

absl::StatusOr<cudaEvent_t> CudaStream::RecordEvent() {
  cudaEvent_t event = nullptr;
  KVTIER_RETURN_IF_ERROR(device_->Check(
      cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming),
      "cudaEventCreate"));
  const cudaError_t error = cudaEventRecord(event, stream_);
  if (error != cudaSuccess) (void)cudaEventDestroy(event);
  KVTIER_RETURN_IF_ERROR(device_->Check(error, "cudaEventRecord"));
  return event;
}

void CudaStream::RunCompletions() {
  const ScopedContext context(*device_);
  for (;;) {
    Completion completion;
    {
      MutexLock lock(&queue_mutex_);
      while (queue_.empty() && !stopping_) queue_changed_.Wait(&queue_mutex_);
      if (queue_.empty()) return;
      completion = std::move(queue_.front());
      queue_.pop_front();
    }
    Complete(std::move(completion));
  }
}

void CudaStream::Complete(Completion completion) {
  const cudaError_t error = cudaEventSynchronize(completion.event);
  // Whatever kernels and copies do wrong while they run is found here, and ends the context.
  if (error != cudaSuccess) device_->health().Lose(error);
  absl::Status status = device_->Check(error, "device stream");
  if (status.ok()) Bring(completion.reads);
  (void)cudaEventDestroy(completion.event);
  staging_.GiveBack(completion.staging);
  completion.done(std::move(status));
}

void CudaStream::Bring(const std::vector<PendingRead>& reads) {
  for (const PendingRead& read : reads) {
    std::memcpy(read.destination, read.staging, static_cast<size_t>(read.bytes));
  }
}

absl::Status CudaStream::SignalWord(int32_t* word, int32_t value) {
  KVTIER_RETURN_IF_ERROR(CheckWord(word));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  // The default has a barrier before the write.
  return device_->Check(device_->driver().stream_write_value(
                            stream_, reinterpret_cast<CUdeviceptr>(word),
                            static_cast<cuuint32_t>(value), CU_STREAM_WRITE_VALUE_DEFAULT),
                        "cuStreamWriteValue32");
}

absl::Status CudaStream::WaitWord(const int32_t* word, int32_t value) {
  KVTIER_RETURN_IF_ERROR(CheckWord(word));
  MutexLock lock(&mutex_);
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  return device_->Check(
      device_->driver().stream_wait_value(stream_, reinterpret_cast<CUdeviceptr>(word),
                                          static_cast<cuuint32_t>(value), CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue32");
}

}  // namespace kvtier
