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

// Bytes of a file.
struct FilePart {
  int32_t fd = -1;  // the caller's
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  bool read_only = false;
  bool unsealed = false;  // a file of the daemon's pool folder
};

class Device {
 public:
  virtual ~Device() = default;

  // Its number in this process; -1: CPU cores.
  virtual int32_t ordinal() const { return -1; }
  // May the host read and write hot memory?
  bool host_readable() const { return ordinal() < 0; }

  virtual Error MapFile(const FilePart& part, std::unique_ptr<Mapping>* mapping) = 0;
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

// Host memory: sealed against shrinking, so that an access never faults whatever anybody does to
// the file; or unsealed, and then a file that nobody but its one user may open.
Error MapHostFile(const FilePart& part, std::unique_ptr<Mapping>* mapping);

std::unique_ptr<Device> OpenCpu(int32_t kernel_threads);

}  // namespace kvtier::data_plane
