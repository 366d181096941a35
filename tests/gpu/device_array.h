// Device memory that a benchmark owns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "tests/gpu/cuda_arena.h"

namespace kvtier::testing {

// `count` values, not initialized. Ends the process on a CUDA error.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    void* memory = nullptr;
    RequireCuda(cudaMalloc(&memory, bytes() + sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(memory);
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  int64_t count() const { return count_; }

  // The first values. Waits.
  void Write(const std::vector<T>& values, cudaStream_t stream) const {
    RequireCuda(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T),
                                cudaMemcpyHostToDevice, stream),
                "upload");
    RequireCuda(cudaStreamSynchronize(stream), "upload");
  }
  // The first `count` values. Waits.
  std::vector<T> Read(int64_t count, cudaStream_t stream) const {
    std::vector<T> values(static_cast<size_t>(count));
    RequireCuda(cudaMemcpyAsync(values.data(), data_, values.size() * sizeof(T),
                                cudaMemcpyDeviceToHost, stream),
                "download");
    RequireCuda(cudaStreamSynchronize(stream), "download");
    return values;
  }
  // Enqueues a copy of the first `count` values of `from`.
  void CopyFrom(const DeviceArray& from, int64_t count, cudaStream_t stream) const {
    RequireCuda(cudaMemcpyAsync(data_, from.data_, static_cast<size_t>(count) * sizeof(T),
                                cudaMemcpyDeviceToDevice, stream),
                "copy on the device");
  }
  // Enqueues zeros.
  void Clear(cudaStream_t stream) const {
    RequireCuda(cudaMemsetAsync(data_, 0, bytes(), stream), "memset");
  }

 private:
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }

  const int64_t count_;
  T* data_;
};

}  // namespace kvtier::testing
