// A GPU's driver that counts what is made and not given back, and fails when told.
#pragma once

#include <memory>

#include "server/device/cuda/cuda_device.h"

namespace kvtier::testing {

// One at a time: the driver's functions know no object.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();

  static constexpr int64_t kGranularity = 4096;
  // A device "GPU-fake" of 1 MiB without a context.
  std::shared_ptr<CudaDevice> MakeDevice() const;

  int fail_at = 0;  // the call that fails, from 1, of those that can; 0: none
  CUresult failure = CUDA_ERROR_OUT_OF_MEMORY;
  int calls = 0;
  int allocations = 0, addresses = 0, mappings = 0, exports = 0;
  int contexts = 0;  // retained
  int current = 0;   // pushed and not popped
  CUcontext last_pushed = nullptr;
  CUresult Step(int* count);

  const std::shared_ptr<CudaHealth> health = std::make_shared<CudaHealth>();
};

}  // namespace kvtier::testing
