#include "server/device/cuda/host_registry.h"

#include <cuda_runtime_api.h>

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {

class CudaHostRegistration final : public HostRegistration {
 public:
  CudaHostRegistration(std::shared_ptr<HostRegistry> registry, uintptr_t address)
      : registry_(std::move(registry)), address_(address) {}
  ~CudaHostRegistration() override { registry_->Remove(address_); }

 private:
  const std::shared_ptr<HostRegistry> registry_;
  const uintptr_t address_;
};

absl::StatusOr<std::unique_ptr<HostRegistration>> HostRegistry::Add(uint8_t* data, int64_t bytes) {
  if (data == nullptr || bytes <= 0) {
    return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1",
                        "host memory to register is empty");
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t end = begin + static_cast<uintptr_t>(bytes);
  if (stopped_.load(std::memory_order_relaxed)) return RegisteringStopped();
  MutexLock lock(&mutex_);
  const auto next = ranges_.upper_bound(begin);
  const bool overlaps_next = next != ranges_.end() && next->first < end;
  const bool overlaps_previous =
      next != ranges_.begin() &&
      std::prev(next)->first + static_cast<uintptr_t>(std::prev(next)->second.bytes) > begin;
  if (overlaps_next || overlaps_previous) {
    return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR",
                     absl::StrCat("host memory of ", bytes,
                                  " bytes is registered already, or overlaps a registered part"),
                     {{"device_error", cudaGetErrorName(cudaErrorHostMemoryAlreadyRegistered)}});
  }
  Range range = {.bytes = bytes};
  if (device_ != nullptr) KVTIER_RETURN_IF_ERROR(Register(begin, &range));
  ranges_.emplace(begin, range);
  return std::make_unique<CudaHostRegistration>(shared_from_this(), begin);
}

absl::Status HostRegistry::Activate(const std::shared_ptr<CudaDevice>& device) {
  MutexLock lock(&mutex_);
  // Registrations are portable: one device makes them for all, also for contexts made later.
  if (device_ != nullptr) return absl::OkStatus();
  device_ = device;
  for (auto& [address, range] : ranges_) {
    const absl::Status status = Register(address, &range);
    if (status.ok()) continue;
    for (auto& [other_address, other] : ranges_) Unregister(other_address, &other);
    device_ = nullptr;
    return status;
  }
  return absl::OkStatus();
}

absl::Status HostRegistry::Register(uintptr_t address, Range* range) {
  if (stopped_.load(std::memory_order_relaxed)) return RegisteringStopped();
  const ScopedContext context(*device_);
  KVTIER_RETURN_IF_ERROR(context.status());
  const cudaError_t error =
      cudaHostRegister(reinterpret_cast<void*>(address), static_cast<size_t>(range->bytes),
                       cudaHostRegisterPortable | cudaHostRegisterMapped);
  range->registered = error == cudaSuccess;
  if (range->registered) return absl::OkStatus();
  (void)device_->Check(error, "cudaHostRegister");  // notes a lost context
  KVTIER_RETURN_IF_ERROR(device_->health().status());
  return MakeError(
      absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
      absl::StrCat("host memory of ", range->bytes, " bytes cannot be registered with the driver: ",
                   cudaGetErrorName(error), " (", cudaGetErrorString(error), ")"),
      {{"limit", "pinned host memory"},
       {"requested_bytes", absl::StrCat(range->bytes)},
       {"device_error", cudaGetErrorName(error)}});
}

void HostRegistry::Unregister(uintptr_t address, Range* range) {
  if (!range->registered) return;
  const ScopedContext context(*device_);
  if (context.current()) {
    (void)device_->Check(cudaHostUnregister(reinterpret_cast<void*>(address)),
                         "cudaHostUnregister");
  }
  range->registered = false;
}

void HostRegistry::Remove(uintptr_t address) {
  MutexLock lock(&mutex_);
  const auto found = ranges_.find(address);
  Unregister(address, &found->second);
  ranges_.erase(found);
}

}  // namespace kvtier
