#include "client/data_plane/device.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "kernels/cpu/cpu.h"

namespace kvtier::data_plane {
namespace {

Error GpuOnly(const std::string& feature) {
  return {.code = Code::kUnimplemented,
          .reason = "NOT_IMPLEMENTED",
          .message = feature + " is for GPUs, and the cache is on a CPU",
          .metadata = {{"feature", feature}}};
}

// Of a call that failed though nothing is wrong with what it was asked.
Error OutOf(const std::string& what) {
  return {.code = Code::kResourceExhausted,
          .reason = "LIMIT_REACHED",
          .message = what + " failed: " + strerror(errno),
          .metadata = {{"limit", "memory and descriptors of this process"}}};
}

// Are the bytes there, and will they stay?
Error CheckFile(const FilePart& part) {
  struct stat file;
  if (fstat(part.fd, &file) != 0) {
    if (errno == EBADF) return MalformedAnswer("it has no descriptor");
    return OutOf("looking at a descriptor");
  }
  if (part.size_bytes <= 0 || part.offset_bytes < 0 ||
      part.offset_bytes % sysconf(_SC_PAGESIZE) != 0 ||
      part.size_bytes > file.st_size - part.offset_bytes) {
    return MalformedAnswer(std::to_string(part.size_bytes) + " bytes from " +
                           std::to_string(part.offset_bytes) + ", but its descriptor has " +
                           std::to_string(file.st_size));
  }
  // A file of the daemon's pool folder has no seals: nobody but its one user may open it.
  if (part.unsealed) {
    if (S_ISREG(file.st_mode) && (file.st_mode & 0077) == 0) return {};
    return MalformedAnswer("its file can be opened by others");
  }
  // A file that shrinks later would make our accesses fault.
  const int seals = fcntl(part.fd, F_GET_SEALS);
  if (seals < 0 && errno != EINVAL) return OutOf("looking at a descriptor");
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MalformedAnswer("its descriptor is not sealed against shrinking");
  }
  return {};
}

class FileMapping final : public Mapping {
 public:
  FileMapping(uint8_t* data, size_t size_bytes) : Mapping(data), size_bytes_(size_bytes) {}
  ~FileMapping() override { munmap(data(), size_bytes_); }

 private:
  const size_t size_bytes_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int32_t kernel_threads) : executor_(kernel_threads) {}

  Error MapFile(const FilePart& part, std::unique_ptr<Mapping>* mapping) override {
    return MapHostFile(part, mapping);
  }
  Error Reserve(const std::vector<GroupShape>& /*shapes*/, int32_t /*step_rows*/) override {
    return {};
  }
  Error SwapIn(const SwapInParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    cpu::SwapIn(params, executor_);
    return {};
  }
  Error ReplayPlan(const ReplayPlanParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    cpu::ReplayPlan(params, executor_);
    return {};
  }
  Error Backup(const BackupParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    cpu::Backup(params, executor_);
    return {};
  }
  Error Read(void* destination, const void* source, int64_t bytes) override {
    memcpy(destination, source, static_cast<size_t>(bytes));
    return {};
  }
  Error Write(void* destination, const void* source, int64_t bytes) override {
    memcpy(destination, source, static_cast<size_t>(bytes));
    return {};
  }
  Error Finish() override { return {}; }

 private:
  static Error CheckStream(Stream stream) {
    if (stream == nullptr) return {};
    return ArgumentError("device_stream", "a stream", "null: the cache is on a CPU");
  }

  cpu::Executor executor_;
};

}  // namespace

Error Device::MapGpuFile(int32_t /*fd*/, int64_t /*size_bytes*/,
                         std::unique_ptr<Mapping>* /*mapping*/) {
  return GpuOnly("SEGMENT_TRANSPORT_CUDA_FD");
}

Error Device::MapGpuHandle(const void* /*handle*/, int64_t /*offset_bytes*/, int64_t /*size_bytes*/,
                           std::unique_ptr<Mapping>* /*mapping*/) {
  return GpuOnly("SEGMENT_TRANSPORT_CUDA_IPC");
}

Error Device::Signal(int32_t* /*word*/, int32_t /*number*/, Stream /*stream*/) {
  return ArgumentError("device_stream", "a stream", "null: the cache is on a CPU");
}

Error Device::Wait(const int32_t* /*word*/, int32_t /*number*/, Stream /*stream*/) {
  return ArgumentError("device_stream", "a stream", "null: the cache is on a CPU");
}

Error MapHostFile(const FilePart& part, std::unique_ptr<Mapping>* mapping) {
  if (Error error = CheckFile(part); !error.ok()) return error;
  const int protection = PROT_READ | (part.read_only ? 0 : PROT_WRITE);
  const auto bytes = static_cast<size_t>(part.size_bytes);
  void* data =
      mmap(nullptr, bytes, protection, MAP_SHARED, part.fd, static_cast<off_t>(part.offset_bytes));
  if (data == MAP_FAILED) {
    return {.code = Code::kResourceExhausted,
            .reason = "LIMIT_REACHED",
            .message = "mapping " + std::to_string(bytes) + " bytes failed: " + strerror(errno),
            .metadata = {{"requested_bytes", std::to_string(bytes)}}};
  }
  *mapping = std::make_unique<FileMapping>(static_cast<uint8_t*>(data), bytes);
  return {};
}

std::unique_ptr<Device> OpenCpu(int32_t kernel_threads) {
  return std::make_unique<CpuDevice>(kernel_threads);
}

}  // namespace kvtier::data_plane
