// Pinned host memory through which small copies between host and device go.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "server/core/mutex.h"

namespace kvtier {

// Lends pieces of larger chunks, since making pinned memory takes long. One thread at a time
// takes; any thread gives back. A device's context is current in every call.
class PinnedStaging {
 public:
  struct Chunk {
    uint8_t* data = nullptr;
    int64_t size_bytes = 0;
    int64_t used_bytes = 0;
    int64_t pieces = 0;  // lent
  };
  struct Piece {
    uint8_t* data = nullptr;
    Chunk* chunk = nullptr;  // what is given back
  };

  // At most this much stays when nothing is lent.
  static constexpr int64_t kKeptBytesMax = int64_t{64} << 20;

  // `bytes` > 0. On an error nothing is lent.
  cudaError_t Take(int64_t bytes, Piece* piece);
  void GiveBack(const std::vector<Chunk*>& lent);
  // Nothing is lent any more.
  void FreeAll();

 private:
  // A chunk with that much room behind what is lent of it, or null.
  Chunk* FindRoom(int64_t bytes) KVTIER_REQUIRES(mutex_);

  Mutex mutex_;  // rank: leaf; never held over a driver call
  std::vector<std::unique_ptr<Chunk>> chunks_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
