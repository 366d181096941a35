#include "server/device/cuda/cuda_backend.h"

#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/cuda_stream.h"
#include "server/device/cuda/host_registry.h"

namespace kvtier {
namespace {

using DeviceList = std::vector<std::shared_ptr<CudaDevice>>;

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(const CudaBackendOptions& options, std::shared_ptr<CudaHealth> health,
              DeviceList devices)
      : options_(options), health_(std::move(health)), devices_(std::move(devices)) {}

  std::vector<DeviceInfo> Devices() const override {
    std::vector<DeviceInfo> infos;
    for (const auto& device : devices_) infos.push_back(device->info());
    return infos;
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view device_uuid,
                                                         absl::string_view purpose,
                                                         int64_t bytes) override {
    KVTIER_RETURN_IF_ERROR(Health());
    KVTIER_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, Find(device_uuid));
    if (bytes <= 0) return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1", purpose);
    if (bytes > device->info().memory_bytes) {
      return device->Exhausted(purpose, bytes,
                               absl::StrCat("it has ", device->info().memory_bytes));
    }
    KVTIER_RETURN_IF_ERROR(Use(device));
    return options_.transport == MemoryHandle::Transport::kCudaFd
               ? AllocateShareable(device, purpose, bytes)
               : AllocateLegacy(device, purpose, bytes);
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      absl::string_view device_uuid) override {
    KVTIER_RETURN_IF_ERROR(Health());
    KVTIER_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, Find(device_uuid));
    KVTIER_RETURN_IF_ERROR(Use(device));
    return CudaStream::Create(device);
  }

  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t* data,
                                                                 int64_t bytes) override {
    KVTIER_RETURN_IF_ERROR(Health());
    return host_->Add(data, bytes);
  }

  void StopRegistering() override { host_->Stop(); }

  absl::Status Health() const override { return health_->status(); }

 private:
  absl::StatusOr<std::shared_ptr<CudaDevice>> Find(absl::string_view device_uuid) const {
    std::vector<std::string> known;
    for (const auto& device : devices_) {
      if (device->info().uuid == device_uuid) return device;
      known.push_back(device->info().uuid);
    }
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
        absl::StrCat("no device '", device_uuid,
                     "'; this daemon has: ", absl::StrJoin(known, ", ")),
        {{"device_uuid", std::string(device_uuid)}, {"known", absl::StrJoin(known, ",")}});
  }

  // With a context, and with the host pool within its reach.
  absl::Status Use(const std::shared_ptr<CudaDevice>& device) {
    KVTIER_RETURN_IF_ERROR(device->Activate());
    return host_->Activate(device);
  }

  const CudaBackendOptions options_;
  const std::shared_ptr<CudaHealth> health_;
  const DeviceList devices_;
  const std::shared_ptr<HostRegistry> host_ = std::make_shared<HostRegistry>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeCudaBackend(const CudaBackendOptions& options) {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  auto health = std::make_shared<CudaHealth>();
  KVTIER_ASSIGN_OR_RETURN(DeviceList devices, FindCudaDevices(health));
  return std::make_unique<CudaBackend>(options, std::move(health), std::move(devices));
}

}  // namespace kvtier
