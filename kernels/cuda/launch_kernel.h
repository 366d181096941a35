// One way to launch a kernel, and the choice of how many layers travel with it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/params.h"

namespace kvtier::cuda {

// Shared memory that every kernel may have without asking.
inline constexpr int64_t kSharedBytesDefault = 48 * 1024;
// Layers are passed by value, so that a captured graph owns them: 256 of 80 bytes fit into the
// 32,764 bytes of parameters that sm_70 and later take.
inline constexpr int32_t kLayersPerLaunch = 256;

template <int32_t kLayersMax>
struct LayerList {
  int32_t count;
  LayerView layers[kLayersMax];
};

// An attribute of the current device, which must be the one of the stream.
inline cudaError_t DeviceAttribute(cudaDeviceAttr attribute, int32_t* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(value, attribute, device) : error;
}

// Lets blocks of `kernel` have all the shared memory that the device offers. Always the same value:
// one that is just enough for this launch would take from a launch in another thread.
inline cudaError_t AllowAllSharedMemory(const void* kernel) {
  int32_t bytes = 0;
  const cudaError_t error = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

struct LaunchShape {
  int64_t blocks;
  int32_t threads;
  int64_t shared_bytes;
  int32_t cluster = 1;  // blocks that run at the same time beside each other; 1: any device
  // The kernel waits by itself for the end of the one before it in the stream (sm_90).
  bool overlaps = false;
};

// Enqueues `kernel`. Takes the launch's own error, not a pending one of an earlier call.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (shape.shared_bytes > kSharedBytesDefault) {
    const cudaError_t error = AllowAllSharedMemory(reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (shape.overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int32_t threads,
                   int64_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  return Launch(kernel, LaunchShape{blocks, threads, shared_bytes}, stream, arguments...);
}

// Calls function(std::integral_constant<int32_t, N>()) with the smallest N for `layer_count`
// layers: kernels for few layers have few parameters to fetch.
template <typename Function>
cudaError_t WithLayersMax(int32_t layer_count, const Function& function) {
  if (layer_count <= 1) return function(std::integral_constant<int32_t, 1>());
  if (layer_count <= 8) return function(std::integral_constant<int32_t, 8>());
  if (layer_count <= 64) return function(std::integral_constant<int32_t, 64>());
  return function(std::integral_constant<int32_t, kLayersPerLaunch>());
}

inline int64_t RowBytesOfAll(const LayerView* layers, int32_t layer_count) {
  int64_t bytes = 0;
  for (int32_t l = 0; l < layer_count; ++l) bytes += RowBytes(layers[l].layout);
  return bytes;
}

}  // namespace kvtier::cuda
