// Devices behind one interface: CPU, CUDA, and a fault-injecting wrapper for tests.
//
// The only server floor that knows what a device is. Everything above sees segments of memory,
// ordered device streams, and the parameter structs of kernels/params.h.
//
//   auto backend = MakeCpuBackend({.threads = 2});
//   auto memory = (*backend)->Allocate("CPU-0", 1 << 20);
//   auto stream = (*backend)->CreateStream("CPU-0");
//   (*stream)->SwapIn(params);
//   (*stream)->Notify([](absl::Status status) { ... });
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/params.h"
#include "server/core/shared_memory.h"

namespace kvtier {

enum class BackendKind { kCpu, kCuda };

struct DeviceInfo {
  std::string uuid;  // "GPU-..." or "CPU-0"; the only name a device has
  std::string name;
  BackendKind kind = BackendKind::kCpu;
  int64_t memory_bytes = 0;
};

// How another process maps a piece of device memory.
struct MemoryHandle {
  enum class Transport {
    kPosixFd,  // mmap
    kCudaIpc,  // cudaIpcOpenMemHandle
    kCudaFd,   // cuMemImportFromShareableHandle
  };
  Transport transport = Transport::kPosixFd;
  UniqueFd fd;                           // kPosixFd, kCudaFd
  std::array<uint8_t, 64> ipc_handle{};  // kCudaIpc
  int64_t offset_bytes = 0;              // from the start of what the handle names
};

// Owns one allocation, zero-filled. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Address for kernels on that device (on the CPU backend also for the host).
  virtual uint8_t* data() const = 0;
  virtual int64_t size_bytes() const = 0;
  // A handle for one other process; may be called again. Errors: RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<MemoryHandle> Export() const = 0;
};

// Work on one device, done in the order it was enqueued. Thread-safe.
//
// Enqueueing copies the parameter struct and the `layers` / `sources` arrays, and returns
// without waiting for the device. The memory that the parameters point to must live until a
// Notify enqueued later has run. An enqueue that fails (INTERNAL / DEVICE_ERROR, UNAVAILABLE /
// DEVICE_LOST, or RESOURCE_EXHAUSTED where there is no memory to do it with) has enqueued nothing.
// Destruction waits for everything enqueued.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual absl::Status SwapIn(const SwapInParams& params) = 0;
  virtual absl::Status ReplayPlan(const ReplayPlanParams& params) = 0;
  virtual absl::Status Backup(const BackupParams& params) = 0;
  // `blocks` is copied.
  virtual absl::Status Invalidate(const InvalidateParams& params) = 0;
  virtual absl::Status ResetRegion(const ResetRegionParams& params) = 0;
  // Host to device; `source` is copied before this returns.
  virtual absl::Status Write(uint8_t* destination, const void* source, int64_t bytes) = 0;
  // Device to host; `destination` must live until a later Notify has run.
  virtual absl::Status Read(void* destination, const uint8_t* source, int64_t bytes) = 0;
  // Runs `done` once, after all that was enqueued before, on a thread of the backend, with the
  // first error of that work since the last Notify. `done` must not block or enqueue.
  virtual absl::Status Notify(std::function<void(absl::Status)> done) = 0;

  // ---- Order against a worker's own stream, without a host that waits: by numbers in memory that
  // both map. A word is 4-byte aligned and lies in device memory, or in registered host memory.
  // Events of CUDA won't do: a stream that waits for the event of a killed process waits for ever.

  // Writes `value` to `*word` when all that was enqueued before is done, and visible to who sees
  // the value. Errors: DEVICE_ERROR, FIELD_INVALID for a word that is none.
  virtual absl::Status SignalWord(int32_t* word, int32_t value) = 0;
  // What is enqueued from now on comes after *word - value >= 0 (in int32, cyclic). Nobody wakes
  // the stream but a write: whoever enqueues this sees to it that one comes if the writer has died,
  // by a SignalWord or Write of another device stream, or, to host memory, by an atomic store.
  // Errors: as above.
  virtual absl::Status WaitWord(const int32_t* word, int32_t value) = 0;

  // ---- Short work on the caller's thread, where the device is the host.

  // True: nothing was enqueued that is not done, and until EndHere what this thread enqueues is
  // done when its call returns: no Notify is needed to know. What other threads enqueue meanwhile
  // comes after EndHere. False, and on a GPU always: nothing has changed.
  virtual bool BeginHere() { return false; }
  // After a BeginHere that was true, on the same thread.
  virtual void EndHere() {}
};

// Host memory that kernels can reach; unregisters on destruction.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

// UNAVAILABLE / DRAINING.
absl::Status RegisteringStopped();

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::vector<DeviceInfo> Devices() const = 0;
  // Errors: FAILED_PRECONDITION / DEVICE_UNKNOWN (metadata: device_uuid, known),
  // RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view device_uuid,
                                                                 absl::string_view purpose,
                                                                 int64_t bytes) = 0;
  // Errors: DEVICE_UNKNOWN, DEVICE_ERROR. The first use of a device, by this or Allocate, may have
  // to register host memory, and fails as RegisterHost does.
  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      absl::string_view device_uuid) = 0;
  // Makes [data, data + bytes) reachable by every device. Errors: RESOURCE_EXHAUSTED saying
  // "host memory", size and cause; nothing stays registered or pending. RegisteringStopped().
  virtual absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t* data,
                                                                         int64_t bytes) = 0;
  // For a process that ends: a driver that is registering memory finishes the piece that it is at,
  // and who asked for it, now or later, gets RegisteringStopped(). What is registered stays so.
  // Returns at once.
  virtual void StopRegistering() = 0;
  // OK, or UNAVAILABLE / DEVICE_LOST. Never waits for a device.
  virtual absl::Status Health() const = 0;
};

}  // namespace kvtier
