// Memory of a GPU that mirrors arrays in ordinary memory for the time of a call.
//
// Arrays follow each other in the order in which they are named, each between two guards. The same
// calls in the same order therefore get the same addresses, which lets a captured graph be
// replayed for them.
//
//   CudaArena arena(/*on_device=*/true, stream);
//   arena.Begin();
//   int32_t* owner = arena.Mirror(params.state.owner, count, /*writable=*/true);
//   arena.Upload();   // enqueues
//   ...               // kernels on the stream
//   arena.Download(); // waits; copies writable arrays back, complains about changes elsewhere
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace kvtier::testing {

// Ends the process if `error` is one: after a CUDA error nothing can be trusted.
void RequireCuda(cudaError_t error, const char* what);

class CudaArena {
 public:
  // On the device, or in pinned host memory that kernels reach over PCIe.
  CudaArena(bool on_device, cudaStream_t stream) : on_device_(on_device), stream_(stream) {}
  ~CudaArena();
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;

  void Begin() { arrays_.clear(); }

  // The place of `array` on the GPU, null for null.
  template <typename T>
  T* Mirror(T* array, int64_t count, bool writable) {
    return static_cast<T*>(const_cast<void*>(Add(array, count * int64_t{sizeof(T)}, writable)));
  }

  // True if the arrays did not fit: the arena has grown and is empty, name all of them again.
  bool MustBeginAgain();
  void Upload();
  void Download();

 private:
  struct Array {
    void* host;
    int64_t offset, bytes;
    bool writable;
  };

  const void* Add(const void* host, int64_t bytes, bool writable);
  int64_t UsedBytes() const;
  void Check(const Array& array) const;

  const bool on_device_;
  const cudaStream_t stream_;
  int64_t capacity_ = 0;
  uint8_t* staging_ = nullptr;  // pinned; is the memory itself if not on the device
  uint8_t* device_ = nullptr;
  std::vector<Array> arrays_;
};

// True if one of the arenas says so. All of them are asked.
bool MustBeginAgain(std::initializer_list<CudaArena*> arenas);

}  // namespace kvtier::testing
