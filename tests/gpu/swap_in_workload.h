// Decode steps on a GPU whose swap-ins are timed and checked.
//
// Requests with contexts in random blocks of a pinned pool; each step keeps a share of the last
// top-k and asks for rows that are not hot instead of the rest (miss_trace.h). 16 steps of warm-up,
// 48 or so in one CUDA graph, replayed from the same state each time. The sequential reference
// plays the same trace: hot indices of every step, owners, orders and scores must be its own, and
// every hot row must be the host row of its owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/params.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/pinned_pool.h"

namespace kvtier::testing {

struct WorkloadSizes {
  int32_t top_k = 2048;
  int32_t hot_size = 4096;
  int32_t context = 32768;  // rows of a request, a multiple of the block's 64
  int32_t batch_max = 128;  // requests
  int32_t row_bytes = 656;
  int32_t layers = 1;      // of the group
  int64_t pool_bytes = 0;  // the part of the pool where blocks are drawn; 0: as requests need
  // Requests draw their blocks each from the whole part, so that two may have a block in common,
  // as requests with a common prefix have: any batch on a pool of any size.
  bool blocks_may_be_shared = false;
  // Rows at the start of every context that lie in the same blocks for all requests, a multiple of
  // the block's 64.
  int32_t common = 0;
  int32_t measured = 48;  // steps
  EvictionPolicy policy = EvictionPolicy::kLru;
};

struct Timing {
  double us = 0;       // a step: the median of the replays, each divided by its steps
  double us_best = 0;  // the best of them
  double us_each = 0;  // the median of single steps, with the cost of an event
  double us_p99 = 0;   // their 99th percentile
  double bytes = 0;    // a step, from the host pool
  double shared = 0;   // rows a step that came from another request's
  int64_t wrong = 0;   // rows, indices, owners and orders that are not as they must be
};

class SwapInWorkload {
 public:
  static constexpr int32_t kWarmUp = 16;

  enum class Kernel {
    kOurs,           // one call for all layers
    kSharing,        // the same, with a directory
    kDesignA,        // the leader alone
    kReplay,         // the leader, then its plan on the other layers
    kReplaySharing,  // the same, with a directory
    kReplayBeside,   // the same, on a second stream, while the next step goes on
  };

  // Takes device memory, lays out block tables, writes the rows of the pool that are used.
  SwapInWorkload(const WorkloadSizes& sizes, const PinnedPool& pool, cudaStream_t stream);
  ~SwapInWorkload();
  SwapInWorkload(const SwapInWorkload&) = delete;
  SwapInWorkload& operator=(const SwapInWorkload&) = delete;

  // Another trace: `misses` a request and step. Plays it on the reference, and the warm-up on the
  // GPU.
  void Load(int32_t misses);

  // The first `batch` requests of the trace. Kernels take turns, `repeats` times.
  std::vector<Timing> Time(int32_t batch, const std::vector<Kernel>& kernels, int32_t repeats,
                           const cuda::LaunchOptions& launch = {});

  // Of the first `batch` requests, in a measured step.
  double RowsPerStep(int32_t batch) const;
  // Rows of the pool: slots of the first `batch` requests on any layer, drawn at random.
  std::vector<int32_t> RandomSlots(int32_t batch, int64_t count) const;

 private:
  struct Buffers;

  GroupShape Shape() const;
  void DrawBlocks();
  void FillUsedBlocks();
  void StartEmpty();
  int64_t HotBytes(int32_t batch) const;
  void Restore(int32_t batch);
  std::vector<LayerView> Layers() const;
  cudaError_t Step(Kernel kernel, int32_t batch, int32_t step, int32_t* hot_indices,
                   const cuda::LaunchOptions& launch);
  cudaError_t StepByPlan(Kernel kernel, SwapInParams params, int32_t step);
  int64_t CountWrongState(int32_t batch);
  int64_t CountWrongIndices(Kernel kernel, int32_t batch, const cuda::LaunchOptions& launch);

  const WorkloadSizes sizes_;
  const PinnedPool& pool_;
  const cudaStream_t stream_;
  const int32_t slot_count_;
  const int32_t steps_;                           // with the warm-up
  cudaStream_t beside_ = nullptr;                 // kReplayBeside
  cudaEvent_t resolved_ = nullptr;                // the leader of a step is done
  cudaEvent_t replayed_[2] = {nullptr, nullptr};  // a step's followers are, by its parity
  std::vector<int32_t> block_table_;              // [batch_max, blocks a request]
  std::vector<int32_t> topk_, expected_;          // [step, batch_max, top_k] positions, hot indices
  std::vector<int32_t> expected_owner_;           // [batch_max, hot_size] after the last step
  std::vector<int16_t> expected_lru_;             // ditto
  std::vector<uint8_t> expected_score_;           // ditto; kAged only, else empty
  std::vector<int64_t> misses_;                   // [batch_max] of all measured steps
  std::unique_ptr<Buffers> device_;
};

}  // namespace kvtier::testing
