// A simulated GPU: kernels run on a CPU, each thread of a block as a fiber.
//
// For machines without a GPU, where it runs the very source of kernels/cuda/. It takes turns in an
// order drawn from a seed and changes turns only at barriers and warp exchanges, so what it finds
// is deterministic:
//   - a missing barrier between two phases, as a result that depends on the seed
//   - a barrier that some threads of a block never reach, or reach at another line
//   - a warp exchange without all its lanes
//   - reading shared memory that nothing wrote (it is poisoned), or writing past its end
//   - two blocks of one cluster that must not meet, as they take turns as well: what one writes
//     before another has read it
//   - a barrier of a cluster that part of a warp reaches, at which a thread arrives twice or waits
//     without having arrived; shared memory of a block that has left the kernel
// It does not find what needs two clusters or two processes at a time, weak memory ordering,
// misaligned vectors, or what a compiler for GPUs makes of the source; and it says nothing about
// speed. The checks on a GPU remain.
//
// One grid at a time, in one thread of the process. Complaints end the process, as the stacks of
// a block that went wrong can't be unwound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

// A line of a kernel. (clang 14 has no std::source_location.)
struct Place {
  const char* file;
  unsigned line;
  // Of the caller; as a default argument, of that function's caller.
  static constexpr Place Here(const char* file = __builtin_FILE(),
                              unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Place& other) const;
};

struct Grid {
  unsigned blocks;
  unsigned threads;      // of a block
  size_t shared_bytes;   // of a block, dynamic
  unsigned cluster = 1;  // blocks that run at the same time: a power of two up to kClusterMax
};

inline constexpr unsigned kClusterMax = 8;

struct Gpu {
  int multiprocessors = 3;
  int shared_bytes_max = 227 * 1024;  // a block may have
  uint64_t seed = 0;                  // of the order in which threads and blocks get their turns
  bool has_clusters = false;          // sm_90
  // Called when a cluster's barrier opens, for the `phase`-th time: what has happened by then?
  std::function<void(unsigned phase)> at_cluster_barrier = nullptr;
};

// What the next grids run on.
void SetGpu(const Gpu& gpu);
const Gpu& CurrentGpu();

// Runs all clusters, one after the other. False if the grid can't be launched.
bool Run(const Grid& grid, const std::function<void()>& kernel);

// --- For intrinsics, in a running kernel ---------------------------------------

// Waits for all threads of the block. Returns the sum of their values.
uint64_t BlockBarrier(uint64_t value, const Place& where);
// Waits for all lanes of the warp. Returns their 32 values, valid until the next exchange.
const uint64_t* Exchange(uint64_t value, const Place& where);
// The barrier of the cluster in its two halves, each by all lanes of a warp together. Threads that
// have left the kernel count as arrived.
void ArriveAtCluster(const Place& where);
void WaitForCluster(const Place& where);
// What the cluster's first block has at the place where this block has `shared`.
const void* OfFirstBlock(const void* shared, const Place& where);

void Require(bool holds, const char* complaint, const Place& where);
void RequireAllLanes(unsigned mask, const Place& where);

}  // namespace simt
