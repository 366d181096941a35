#include "client/device.h"

#include "absl/strings/str_cat.h"
#include "client/cpu_device.h"
#include "client/error.h"

#if defined(KVTIER_CLIENT_CUDA)
#include "client/cuda/cuda_device.h"
#endif

namespace kvtier::client {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const v1::Device& device,
                                                   int32_t kernel_threads) {
  if (device.backend() == "cpu") return std::make_unique<CpuDevice>(kernel_threads);
#if defined(KVTIER_CLIENT_CUDA)
  if (device.backend() == "cuda") return OpenCudaDevice(device.uuid());
#endif
  return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                   absl::StrCat("device ", device.uuid(), " is of the backend '", device.backend(),
                                "', for which this client library was not built"),
                   {{"feature", absl::StrCat("backend ", device.backend())}});
}

}  // namespace kvtier::client
