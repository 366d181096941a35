// What users of the kernels need of the driver and the runtime has not, on both sides of the
// socket: functions found at run time (linking libcuda would keep a program from starting where
// there is no driver), and a GPU's name as the driver's tools print it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

namespace kvtier::cuda {

// Finds a driver function with the signature that CUDA 12.0 has for it. Errors:
// cudaErrorSymbolNotFound, or why there is no driver; none stays pending in the thread.
template <typename Function>
cudaError_t FindDriverFunction(const char* name, Function* function) {
  constexpr unsigned int kSignatureVersion = 12000;
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kSignatureVersion,
                                                             cudaEnableDefault, &result);
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess && address != nullptr) {
    *function = reinterpret_cast<Function>(address);
    return cudaSuccess;
  }
  cudaGetLastError();
  return error == cudaSuccess ? cudaErrorSymbolNotFound : error;
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
inline std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

}  // namespace kvtier::cuda
