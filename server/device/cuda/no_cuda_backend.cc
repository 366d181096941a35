// Stands in for the CUDA backend in builds without CUDA.
#include "server/core/error.h"
#include "server/device/cuda/cuda_backend.h"

namespace kvtier {

absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeCudaBackend(const CudaBackendOptions&) {
  return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                   "the CUDA backend is not part of this build; use --backend=cpu",
                   {{"feature", "--backend=cuda"}});
}

}  // namespace kvtier
