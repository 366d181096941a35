// Dropping copies whose block was assigned again, and emptying a region.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/stats.cuh"
#include "kernels/eviction.h"
#include "kernels/kept_rows.h"
#include "kernels/region_index.h"

namespace kvtier::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarpsPerBlock = kThreads / kWarpThreads;
constexpr int32_t kBlocksPerMultiprocessor = 2;
// Blocks of the host pool travel by value; more are more launches.
constexpr int32_t kFewBlocks = 64;
constexpr int32_t kManyBlocks = 4096;

struct InvalidateArgs {
  int32_t* owner;
  int64_t owner_count;
  int32_t* kept;  // KeptOf() of all regions, or null
  int64_t kept_count;
  int32_t block_size;
  WorkspaceHeader* header;
  StatsBlock* stats;
  bool closes_call;
};

template <int32_t kBlocksMax>
struct BlockList {
  int32_t count;
  int32_t blocks[kBlocksMax];  // ascending
};

__device__ bool Contains(const int32_t* blocks, int32_t count, int32_t block) {
  int32_t begin = 0, end = count;
  while (begin < end) {
    const int32_t middle = (begin + end) / 2;
    if (blocks[middle] < block) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < count && blocks[begin] == block;
}

// One pass over `owners`, 32 a warp at a time. A swap-in of another process may run on the same
// ones: one is dropped only if it is still the one that was looked at. All threads.
__device__ inline void DropOwners(int32_t* owners, int64_t owner_count, int32_t block_size,
                                  const int32_t* blocks, int32_t block_count, BlockCounts* counts) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = (int64_t{blockIdx.x} * kWarpsPerBlock + Warp()) * kWarpThreads;
  for (int64_t start = first; start < owner_count; start += stride) {
    const int64_t i = start + Lane();
    bool is_dropped = false;
    if (i < owner_count) {
      const int32_t owner = LoadRelaxed(owners + i);
      if (owner >= 0 && Contains(blocks, block_count, owner / block_size)) {
        is_dropped = atomicCAS(owners + i, owner, kNone) == owner;
      }
    }
    counts->CountLanes(Counter::kInvalidatedCopies, is_dropped);
  }
}

// All owners of all regions, and what their kept rows hold.
template <int32_t kBlocksMax>
__global__ void __launch_bounds__(kThreads)
    InvalidateKernel(const __grid_constant__ InvalidateArgs a,
                     const __grid_constant__ BlockList<kBlocksMax> list) {
  auto* const blocks = reinterpret_cast<int32_t*>(SharedBytes());
  BlockCounts counts(blocks + kBlocksMax);
  for (int32_t i = Thread(); i < list.count; i += ThreadCount()) blocks[i] = list.blocks[i];
  for (int32_t c = Thread(); c < kCounterCount; c += ThreadCount()) blocks[kBlocksMax + c] = 0;
  __syncthreads();
  DropOwners(a.owner, a.owner_count, a.block_size, blocks, list.count, &counts);
  if (a.kept != nullptr) {
    DropOwners(a.kept, a.kept_count, a.block_size, blocks, list.count, &counts);
  }
  __syncthreads();
  counts.Flush(a.header);
  if (IsLastBlock(a.header) && a.closes_call && Warp() == 0) {
    AddToStats(a.stats, TakeCounts(a.header));
  }
}

template <int32_t kBlocksMax>
cudaError_t LaunchInvalidate(const InvalidateArgs& args, const int32_t* blocks, int32_t count,
                             int32_t multiprocessors, cudaStream_t stream) {
  BlockList<kBlocksMax> list;
  list.count = count;
  std::copy_n(blocks, count, list.blocks);
  std::sort(list.blocks, list.blocks + count);
  const int64_t grid = std::min((args.owner_count + kThreads - 1) / kThreads,
                                int64_t{multiprocessors} * kBlocksPerMultiprocessor);
  const int64_t shared_bytes = int64_t{kBlocksMax + kCounterCount} * int64_t{sizeof(int32_t)};
  return Launch(InvalidateKernel<kBlocksMax>, grid, kThreads, shared_bytes, stream, args, list);
}

__global__ void __launch_bounds__(kThreads)
    ResetRegionKernel(const __grid_constant__ ResetRegionParams p) {
  const int64_t first = int64_t{p.region} * p.shape.hot_size;
  uint8_t* const score = ScoresOf(p.shape, p.state, p.region);
  for (int32_t h = Thread(); h < p.shape.hot_size; h += ThreadCount()) {
    StoreRelaxed(p.state.owner + first + h, kNone);
    StoreRelaxed(p.state.lru + first + h, static_cast<int16_t>(h));
    if (score != nullptr) StoreRelaxed(score + h, kNoScore);
  }
  int32_t* const kept = KeptOf(p.shape, p.state, p.region);
  for (int32_t rank = Thread(); kept != nullptr && rank < p.shape.rows_per_request;
       rank += ThreadCount()) {
    StoreRelaxed(kept + rank, kNone);
  }
  if (p.state.index == nullptr) return;
  const int32_t words = RegionIndexLength(p.shape.hot_size);
  uint16_t* const index = p.state.index + int64_t{p.region} * words;
  for (int32_t w = Thread(); w < words; w += ThreadCount()) index[w] = 0;
}

}  // namespace

cudaError_t Invalidate(const InvalidateParams& p, void* workspace, cudaStream_t stream) {
  cudaError_t error = CheckInvalidate(p, workspace);
  if (error != cudaSuccess || p.block_count == 0) return error;
  int32_t multiprocessors = 0;
  error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  InvalidateArgs args = {};
  args.owner = p.state.owner;
  args.owner_count = int64_t{p.shape.region_count} * p.shape.hot_size;
  args.kept = KeptOf(p.shape, p.state, 0);
  args.kept_count = int64_t{p.shape.region_count} * p.shape.rows_per_request;
  args.block_size = p.shape.block_size;
  args.header = static_cast<WorkspaceHeader*>(workspace);
  args.stats = p.stats;
  for (int32_t first = 0; error == cudaSuccess && first < p.block_count; first += kManyBlocks) {
    const int32_t count = std::min(p.block_count - first, kManyBlocks);
    args.closes_call = first + count == p.block_count;
    error =
        count <= kFewBlocks
            ? LaunchInvalidate<kFewBlocks>(args, p.blocks + first, count, multiprocessors, stream)
            : LaunchInvalidate<kManyBlocks>(args, p.blocks + first, count, multiprocessors, stream);
  }
  return error;
}

cudaError_t ResetRegion(const ResetRegionParams& p, cudaStream_t stream) {
  const cudaError_t error = CheckResetRegion(p);
  if (error != cudaSuccess) return error;
  return Launch(ResetRegionKernel, 1, kThreads, 0, stream, p);
}

}  // namespace kvtier::cuda
