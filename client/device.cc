#include "client/device.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/data_plane/error.h"
#include "client/error.h"

#if defined(KVTIER_CLIENT_CUDA)
#include "client/data_plane/cuda/cuda_device.h"
#endif

namespace kvtier::client {
namespace {

constexpr size_t kIpcHandleBytes = 64;

// `where`, if any, goes in front of the text.
absl::Status ToStatus(const data_plane::Error& error, const std::string& where = "") {
  if (error.ok()) return absl::OkStatus();
  return MakeError(static_cast<absl::StatusCode>(error.code), error.reason,
                   absl::StrCat(where, error.message),
                   {error.metadata.begin(), error.metadata.end()});
}

bool IsHostMemory(v1::SegmentKind kind) {
  return kind == v1::SEGMENT_KIND_HOST_POOL || kind == v1::SEGMENT_KIND_BLOCK_GENERATION ||
         kind == v1::SEGMENT_KIND_BACKED_GENERATION || kind == v1::SEGMENT_KIND_PROGRESS;
}

std::string NameOf(const v1::Segment& segment) {
  return absl::StrCat("segment ", segment.segment_index());
}

}  // namespace

absl::Status Device::CheckTransport(const v1::Segment& segment) const {
  const bool fits = host_readable() || IsHostMemory(segment.kind())
                        ? segment.transport() == v1::SEGMENT_TRANSPORT_POSIX_FD
                        : segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_FD ||
                              segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_IPC;
  if (fits) return absl::OkStatus();
  const std::string name = v1::SegmentTransport_IsValid(segment.transport())
                               ? v1::SegmentTransport_Name(segment.transport())
                               : absl::StrCat("transport ", static_cast<int>(segment.transport()));
  return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                   absl::StrCat(NameOf(segment), " is passed by ", name,
                                ", which this client library cannot map on this device"),
                   {{"feature", name}});
}

absl::StatusOr<Mapping> Device::Map(const v1::Segment& segment, const RedeemToken& redeem) {
  if (absl::Status status = CheckTransport(segment); !status.ok()) return status;
  std::unique_ptr<data_plane::Mapping> mapping;
  data_plane::Error error;
  if (segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_IPC) {
    if (segment.ipc_handle().size() != kIpcHandleBytes || segment.read_only()) {
      return MalformedAnswer(absl::StrCat(NameOf(segment), " has an IPC handle of ",
                                          segment.ipc_handle().size(), " bytes, or is read-only"));
    }
    error = device_->MapGpuHandle(segment.ipc_handle().data(), segment.offset_bytes(),
                                  segment.size_bytes(), &mapping);
  } else {
    absl::StatusOr<int> fd = redeem(segment.fd_token());
    if (!fd.ok()) return fd.status();
    // A mapping outlives its descriptor.
    const absl::Cleanup close_fd = [fd = *fd] { close(fd); };
    if (segment.transport() == v1::SEGMENT_TRANSPORT_POSIX_FD) {
      error = device_->MapFile({.fd = *fd,
                                .offset_bytes = segment.offset_bytes(),
                                .size_bytes = segment.size_bytes(),
                                .read_only = segment.read_only(),
                                .unsealed = segment.unsealed()},
                               &mapping);
    } else if (segment.offset_bytes() != 0 || segment.read_only()) {
      return MalformedAnswer(absl::StrCat(NameOf(segment), " is GPU memory from offset ",
                                          segment.offset_bytes(), ", or read-only"));
    } else {
      error = device_->MapGpuFile(*fd, segment.size_bytes(), &mapping);
    }
  }
  if (!error.ok()) return ToStatus(error, NameOf(segment) + ": ");
  return Mapping(std::move(mapping), segment.size_bytes());
}

absl::Status Device::Reserve(const CacheShape& shape) {
  std::vector<GroupShape> shapes;
  for (const GroupShapes& group : shape.groups) shapes.push_back(group.shape);
  return ToStatus(device_->Reserve(shapes, shape.step_rows));
}

absl::Status Device::SwapIn(const SwapInParams& params, DeviceStreamRef stream) {
  return ToStatus(device_->SwapIn(params, stream));
}

absl::Status Device::ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef stream) {
  return ToStatus(device_->ReplayPlan(params, stream));
}

absl::Status Device::Backup(const BackupParams& params, DeviceStreamRef stream) {
  return ToStatus(device_->Backup(params, stream));
}

absl::Status Device::Read(void* destination, const void* source, int64_t bytes) const {
  return ToStatus(device_->Read(destination, source, bytes));
}

absl::Status Device::Write(void* destination, const void* source, int64_t bytes) const {
  return ToStatus(device_->Write(destination, source, bytes));
}

absl::Status Device::Finish() { return ToStatus(device_->Finish()); }

absl::Status Device::Signal(int32_t* word, int32_t number, DeviceStreamRef stream) {
  return ToStatus(device_->Signal(word, number, stream));
}

absl::Status Device::Wait(const int32_t* word, int32_t number, DeviceStreamRef stream) {
  return ToStatus(device_->Wait(word, number, stream));
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const v1::Device& device,
                                                   int32_t kernel_threads) {
  if (device.backend() == "cpu") {
    return std::make_unique<Device>(data_plane::OpenCpu(kernel_threads));
  }
#if defined(KVTIER_CLIENT_CUDA)
  if (device.backend() == "cuda") {
    std::unique_ptr<data_plane::Device> opened;
    absl::Status status = ToStatus(data_plane::OpenCuda(device.uuid(), &opened));
    if (!status.ok()) return status;
    return std::make_unique<Device>(std::move(opened));
  }
#endif
  return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                   absl::StrCat("device ", device.uuid(), " is of the backend '", device.backend(),
                                "', for which this client library was not built"),
                   {{"feature", absl::StrCat("backend ", device.backend())}});
}

}  // namespace kvtier::client
