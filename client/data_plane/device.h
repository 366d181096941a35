// Where the kernels of a plane run, and how it maps memory for them. Internal to client/.
//
// On a CPU a kernel is done when its call returns; on a GPU it is enqueued on the caller's stream.
// Nothing here locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/data_plane/error.h"
#include "kernels/params.h"

namespace kvtier::data_plane {

// A cudaStream_t on a GPU, null on a CPU.
using Stream = void*;

// One mapping; its end unmaps.
class Mapping {
 public:
  virtual ~Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }

 protected:
  explicit Mapping(uint8_t* data) : data_(data) {}

 private:
  uint8_t* const data_;
};

class Device {
 public:
  virtual ~Device() = default;

  // Its number in this process; -1: CPU cores.
  virtual int32_t ordinal() const { return -1; }
  // May the host read and write hot memory?
  bool host_readable() const { return ordinal() < 0; }

  virtual Error MapFile(int32_t fd, int64_t offset_bytes, int64_t size_bytes, bool read_only,
                        std::unique_ptr<Mapping>* mapping) = 0;
  virtual Error MapGpuFile(int32_t fd, int64_t size_bytes, std::unique_ptr<Mapping>* mapping);
  virtual Error MapGpuHandle(const void* handle, int64_t offset_bytes, int64_t size_bytes,
                             std::unique_ptr<Mapping>* mapping);

  // Scratch memory for kernels on groups of these shapes. Once.
  virtual Error Reserve(const std::vector<GroupShape>& shapes, int32_t step_rows) = 0;

  virtual Error SwapIn(const SwapInParams& params, Stream stream) = 0;
  virtual Error ReplayPlan(const ReplayPlanParams& params, Stream stream) = 0;
  virtual Error Backup(const BackupParams& params, Stream stream) = 0;

  // Small copies between hot memory and the host; done when they return.
  virtual Error Read(void* destination, const void* source, int64_t bytes) = 0;
  virtual Error Write(void* destination, const void* source, int64_t bytes) = 0;
  virtual Error Finish() = 0;

  virtual Error Signal(int32_t* word, int32_t number, Stream stream);
  virtual Error Wait(const int32_t* word, int32_t number, Stream stream);
};

// Host memory, sealed against shrinking: whatever anybody does to the file, an access never faults.
// Or a file that only its owner may open: then it is the owner who must not shrink it.
Error MapHostFile(int32_t fd, int64_t offset_bytes, int64_t size_bytes, bool read_only,
                  std::unique_ptr<Mapping>* mapping);

std::unique_ptr<Device> OpenCpu(int32_t kernel_threads);

}  // namespace kvtier::data_plane
