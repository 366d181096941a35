// Design A: a block a batch row, phase after phase (design_a.h).
//
//   1. insert     the slots of the row's positions into a hash table in shared memory
//   2. walk       the LRU order, 1,024 hot slots at a time: who is owned by a slot of the table is
//                 a hit, all others are evictable; a scan over the block gives each its rank
//   3. assign     1,024 positions at a time: a scan gives the m-th miss the m-th evictable slot
//   4. order      evictables that stay, then misses, then hits; and the hot indices
//   5. copy       the row's misses, a warp a row, 16 bytes a lane at a time
//
// No byte moves before phase 4 is done, and no other block helps.
#include <cuda_runtime.h>

#include <climits>

#include "tests/gpu/design_a.h"

namespace kvtier::cuda {

// Of the block, dynamic.
extern __shared__ uint4 shared_memory[];

namespace {

constexpr int32_t kThreads = 1024;
constexpr int32_t kLanes = 32;
constexpr uint32_t kAll = 0xffffffffu;
constexpr int32_t kUnseen = INT32_MAX;
constexpr int32_t kMasked = -1, kIsNewest = -2;  // in entry_of

struct Args {
  GroupShape shape;
  int32_t* owner;
  int16_t* lru;
  const int32_t* row_to_request;
  const int32_t* topk;
  const int32_t* newest_slot;
  const int32_t* block_table;
  int32_t* hot_indices;
  LayerView layer;
  int32_t entries;  // of the hash table
};

// Shared memory of a block.
struct Tables {
  int32_t* keys;        // [entries] slot, -1 empty
  int32_t* places;      // [entries] first position of the slot; ~hot slot once it has one
  int32_t* entry_of;    // [top_k] entry of each position, or kMasked, kIsNewest
  int32_t* miss_slots;  // [top_k]
  int16_t* evictable;   // [hot_size] oldest first; the first become the misses' places
  int16_t* hits;        // [hot_size] oldest first
  int32_t* warp_sums;   // [32]
};

// At least twice as many entries as slots.
int32_t EntriesFor(int32_t top_k) {
  int32_t entries = kLanes;
  while (entries < 2 * top_k) entries *= 2;
  return entries;
}

int64_t SharedBytesFor(int32_t top_k, int32_t hot_size, int32_t entries) {
  return int64_t{8} * entries + int64_t{8} * top_k + int64_t{4} * hot_size + 4 * kLanes;
}

__device__ Tables CutTables(const Args& a) {
  Tables t;
  t.keys = reinterpret_cast<int32_t*>(shared_memory);
  t.places = t.keys + a.entries;
  t.warp_sums = t.places + a.entries;
  t.entry_of = t.warp_sums + kLanes;
  t.miss_slots = t.entry_of + a.shape.top_k;
  t.evictable = reinterpret_cast<int16_t*>(t.miss_slots + a.shape.top_k);
  t.hits = t.evictable + a.shape.hot_size;
  return t;
}

__device__ int32_t FirstEntry(const Args& a, int32_t slot) {
  return static_cast<int32_t>((static_cast<uint32_t>(slot) * 2654435769u) >> 15) & (a.entries - 1);
}

__device__ int32_t Insert(const Args& a, const Tables& t, int32_t slot) {
  for (int32_t entry = FirstEntry(a, slot);; entry = (entry + 1) & (a.entries - 1)) {
    const int32_t seen = atomicCAS(t.keys + entry, kNone, slot);
    if (seen == kNone || seen == slot) return entry;
  }
}

__device__ int32_t Find(const Args& a, const Tables& t, int32_t slot) {
  for (int32_t entry = FirstEntry(a, slot);; entry = (entry + 1) & (a.entries - 1)) {
    const int32_t seen = t.keys[entry];
    if (seen == slot) return entry;
    if (seen == kNone) return kNone;
  }
}

// How many threads before this one have `flag`; *total: how many of the block. All threads.
__device__ int32_t RankAmong(bool flag, int32_t* warp_sums, int32_t* total) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kLanes);
  const uint32_t votes = __ballot_sync(kAll, flag);
  __syncthreads();  // the sums of the scan before have been read
  if (lane == 0) warp_sums[warp] = __popc(votes);
  __syncthreads();
  if (warp == 0) {
    int32_t sum = warp_sums[lane];
    for (int32_t step = 1; step < kLanes; step *= 2) {
      const int32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  *total = warp_sums[kLanes - 1];
  return (warp > 0 ? warp_sums[warp - 1] : 0) + __popc(votes & ((1u << lane) - 1));
}

__device__ void InsertSlots(const Args& a, const Tables& t, int32_t row, int32_t region,
                            int32_t newest) {
  const GroupShape& s = a.shape;
  for (int32_t e = threadIdx.x; e < a.entries; e += kThreads) {
    t.keys[e] = kNone;
    t.places[e] = kUnseen;
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < s.top_k; i += kThreads) {
    int32_t slot = a.topk[int64_t{row} * s.top_k + i];
    if (a.block_table != nullptr) {
      slot = ResolveSlot(a.block_table + int64_t{region} * s.max_blocks, s.max_blocks, s.block_size,
                         kNone, slot);
    }
    int32_t entry = kMasked;
    if (slot >= 0 && slot == newest) {
      entry = kIsNewest;
    } else if (slot >= 0) {
      entry = Insert(a, t, slot);
      atomicMin(t.places + entry, i);
    }
    t.entry_of[i] = entry;
  }
  __syncthreads();
}

// Returns how many are evictable.
__device__ int32_t WalkOrder(const Args& a, const Tables& t, int32_t* owner, const int16_t* lru,
                             int32_t newest) {
  int32_t hit_count = 0;
  for (int32_t first = 0; first < a.shape.hot_size; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const bool is_there = i < a.shape.hot_size;
    int32_t hot_slot = kNone, entry = kNone;
    if (is_there) {
      hot_slot = lru[i];
      const int32_t slot = owner[hot_slot];
      if (slot >= 0 && slot == newest) {
        owner[hot_slot] = kNone;
      } else if (slot >= 0) {
        entry = Find(a, t, slot);
      }
    }
    int32_t hits_here;
    const int32_t before = hit_count + RankAmong(entry >= 0, t.warp_sums, &hits_here);
    if (entry >= 0) {
      t.hits[before] = static_cast<int16_t>(hot_slot);
      t.places[entry] = ~hot_slot;
    } else if (is_there) {
      t.evictable[i - before] = static_cast<int16_t>(hot_slot);
    }
    hit_count += hits_here;
  }
  __syncthreads();
  return a.shape.hot_size - hit_count;
}

// Returns how many misses there are.
__device__ int32_t AssignMisses(const Args& a, const Tables& t, int32_t* owner) {
  int32_t miss_count = 0;
  for (int32_t first = 0; first < a.shape.top_k; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const int32_t entry = i < a.shape.top_k ? t.entry_of[i] : kMasked;
    const bool is_miss = entry >= 0 && t.places[entry] == i;
    int32_t misses_here;
    const int32_t m = miss_count + RankAmong(is_miss, t.warp_sums, &misses_here);
    if (is_miss) {
      const int32_t slot = t.keys[entry];
      const int32_t hot_slot = t.evictable[m];
      t.places[entry] = ~hot_slot;
      t.miss_slots[m] = slot;
      owner[hot_slot] = slot < a.shape.slot_count ? slot : kNone;
    }
    miss_count += misses_here;
  }
  __syncthreads();
  return miss_count;
}

__device__ void WriteOutputs(const Args& a, const Tables& t, int32_t row, int32_t base,
                             int16_t* lru, int32_t evictable_count, int32_t miss_count) {
  for (int32_t i = threadIdx.x; i < a.shape.hot_size; i += kThreads) {
    const int32_t staying = evictable_count - miss_count;
    int16_t hot_slot;
    if (i < staying) {
      hot_slot = t.evictable[miss_count + i];
    } else if (i < evictable_count) {
      hot_slot = t.evictable[i - staying];
    } else {
      hot_slot = t.hits[i - evictable_count];
    }
    lru[i] = hot_slot;
  }
  for (int32_t i = threadIdx.x; i < a.shape.top_k; i += kThreads) {
    const int32_t entry = t.entry_of[i];
    int32_t hot_row = kNone;
    if (entry >= 0) hot_row = base + ~t.places[entry];
    if (entry == kIsNewest) hot_row = base + a.shape.hot_size;
    a.hot_indices[int64_t{row} * a.shape.top_k + i] = hot_row;
  }
}

__device__ void CopyMisses(const Args& a, const Tables& t, int32_t base, int32_t miss_count) {
  const RowLayout& layout = a.layer.layout;
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const int32_t vectors = layout.value_bytes / 16;
  for (int32_t m = threadIdx.x / kLanes; m < miss_count; m += kThreads / kLanes) {
    const int32_t slot = t.miss_slots[m];
    const bool has_source = slot < a.shape.slot_count;
    auto* const to =
        reinterpret_cast<uint4*>(a.layer.hot + ValueOffset(layout, base + t.evictable[m]));
    const auto* const from =
        reinterpret_cast<const uint4*>(a.layer.host + (has_source ? ValueOffset(layout, slot) : 0));
    for (int32_t i = lane; i < vectors; i += kLanes) {
      to[i] = has_source ? from[i] : make_uint4(0, 0, 0, 0);
    }
  }
}

__global__ void __launch_bounds__(kThreads) DesignAKernel(const __grid_constant__ Args a) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t region = a.row_to_request[row];
  if (region < 0) {
    for (int32_t i = threadIdx.x; i < a.shape.top_k; i += kThreads) {
      a.hot_indices[int64_t{row} * a.shape.top_k + i] = kNone;
    }
    return;
  }
  const Tables t = CutTables(a);
  const int32_t newest = a.newest_slot != nullptr ? a.newest_slot[row] : kNone;
  int32_t* const owner = a.owner + int64_t{region} * a.shape.hot_size;
  int16_t* const lru = a.lru + int64_t{region} * a.shape.hot_size;
  const int32_t base = region * a.shape.region_stride;
  InsertSlots(a, t, row, region, newest);
  const int32_t evictable_count = WalkOrder(a, t, owner, lru, newest);
  const int32_t miss_count = AssignMisses(a, t, owner);
  WriteOutputs(a, t, row, base, lru, evictable_count, miss_count);
  CopyMisses(a, t, base, miss_count);
}

}  // namespace

cudaError_t DesignA(const SwapInParams& params, cudaStream_t stream) {
  const GroupShape& s = params.shape;
  const int32_t entries = EntriesFor(s.top_k);
  const int64_t shared_bytes = SharedBytesFor(s.top_k, s.hot_size, entries);
  int device = 0;
  int32_t shared_max = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  if (params.num_rows < 1 || params.layer_count != 1 || s.rows_per_request != 1 ||
      params.layers[0].layout.format != RowFormat::kContiguous || shared_bytes > shared_max) {
    return cudaErrorInvalidValue;
  }
  error = cudaFuncSetAttribute(reinterpret_cast<const void*>(DesignAKernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max);
  if (error != cudaSuccess) return error;
  const Args args = {s,
                     params.state.owner,
                     params.state.lru,
                     params.row_to_request,
                     params.topk,
                     params.newest_slot,
                     params.block_table,
                     params.hot_indices,
                     params.layers[0],
                     entries};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(params.num_rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, DesignAKernel, args);
}

}  // namespace kvtier::cuda
