#include "server/device/cuda/pinned_staging.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvtier {
namespace {

// Holds hundreds of the usual copies, some kB each.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kPieceAlignment = 256;
// No machine has it.
constexpr int64_t kPieceBytesMax = int64_t{1} << 50;

void Free(std::vector<std::unique_ptr<PinnedStaging::Chunk>> chunks) {
  for (const auto& chunk : chunks) (void)cudaFreeHost(chunk->data);
}

}  // namespace

PinnedStaging::Chunk* PinnedStaging::FindRoom(int64_t bytes) {
  Chunk* best = nullptr;
  for (const auto& chunk : chunks_) {
    if (chunk->size_bytes - chunk->used_bytes < bytes) continue;
    // The fullest: so the others become empty.
    if (best == nullptr ||
        chunk->size_bytes - chunk->used_bytes < best->size_bytes - best->used_bytes) {
      best = chunk.get();
    }
  }
  return best;
}

cudaError_t PinnedStaging::Take(int64_t bytes, Piece* piece) {
  if (bytes > kPieceBytesMax) return cudaErrorMemoryAllocation;
  const int64_t rounded = (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  const auto lend = [&](Chunk* chunk) {
    *piece = {.data = chunk->data + chunk->used_bytes, .chunk = chunk};
    chunk->used_bytes += rounded;
    ++chunk->pieces;
  };
  {
    MutexLock lock(&mutex_);
    if (Chunk* const chunk = FindRoom(rounded); chunk != nullptr) {
      lend(chunk);
      return cudaSuccess;
    }
  }
  auto chunk = std::make_unique<Chunk>();
  // A power of two, so that one that was outgrown serves many others.
  chunk->size_bytes =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rounded, kChunkBytes))));
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, static_cast<size_t>(chunk->size_bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) return error;
  chunk->data = static_cast<uint8_t*>(data);
  lend(chunk.get());
  MutexLock lock(&mutex_);
  chunks_.push_back(std::move(chunk));
  return cudaSuccess;
}

void PinnedStaging::GiveBack(const std::vector<Chunk*>& lent) {
  std::vector<std::unique_ptr<Chunk>> surplus;
  {
    MutexLock lock(&mutex_);
    for (Chunk* const chunk : lent) {
      if (--chunk->pieces == 0) chunk->used_bytes = 0;
    }
    int64_t kept = 0;
    const auto first_surplus =
        std::stable_partition(chunks_.begin(), chunks_.end(), [&](const auto& chunk) {
          if (chunk->pieces > 0) return true;
          kept += chunk->size_bytes;
          return kept <= kKeptBytesMax;
        });
    surplus.assign(std::make_move_iterator(first_surplus), std::make_move_iterator(chunks_.end()));
    chunks_.erase(first_surplus, chunks_.end());
  }
  Free(std::move(surplus));
}

void PinnedStaging::FreeAll() {
  std::vector<std::unique_ptr<Chunk>> all;
  {
    MutexLock lock(&mutex_);
    all = std::exchange(chunks_, {});
  }
  Free(std::move(all));
}

}  // namespace kvtier
