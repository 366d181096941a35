// The CUDA backend passes the suite, with memory of both kinds.

#include "server/device/conformance/conformance.h"
#include "server/device/cuda/cuda_backend.h"

namespace kvtier {
namespace {

ConformanceParam With(const char* name, MemoryHandle::Transport transport) {
  return {name, [transport] { return MakeCudaBackend({.transport = transport}); }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendConformance,
                         ::testing::Values(With("CudaFd", MemoryHandle::Transport::kCudaFd),
                                           With("CudaIpc", MemoryHandle::Transport::kCudaIpc)),
                         ConformanceName);

}  // namespace
}  // namespace kvtier
