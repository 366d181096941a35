#include "tests/gpu/simt/simt.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/gpu/simt/fiber.h"

// The one dynamic shared memory, of the block that has its turn.
namespace kvtier::cuda {
inline constexpr size_t kSharedBytesMax = 256 * 1024;
uint4 shared_memory[kSharedBytesMax / sizeof(uint4)];
}  // namespace kvtier::cuda

namespace simt {
namespace {

constexpr unsigned kWarpLanes = 32;
constexpr unsigned kThreadsMax = 1024;
constexpr size_t kSharedBytesDefault = 48 * 1024;
constexpr unsigned char kPoison = 0xA5;

struct Thread {
  enum class State { kRunnable, kAtBlockBarrier, kAtExchange, kAtClusterBarrier, kDone };
  State state = State::kDone;
  Place where = {};
  unsigned exchanges = 0;  // made so far, which chooses the buffer of the next
  unsigned arrivals = 0;   // at the barrier of the cluster,
  unsigned waits = 0;      // and how many of them it has waited for
  std::unique_ptr<Fiber> fiber;
};

struct WarpState {
  unsigned arrived = 0;
  // Two, so that a lane that is ahead does not overwrite what others have yet to read.
  uint64_t values[2][kWarpLanes];
};

struct Block {
  unsigned index = 0;
  std::vector<Thread> threads;
  std::vector<WarpState> warps;
  unsigned arrived = 0;  // at the block barrier
  unsigned finished = 0;
  uint64_t sum = 0;  // of the barrier's values
  uint64_t released_sum = 0;
  std::vector<unsigned char> shared;  // while others have their turns
};

struct Simulator {
  Gpu gpu;
  Grid grid = {};
  const std::function<void()>* kernel = nullptr;
  std::array<Block, kClusterMax> blocks;  // of the cluster that runs
  Block* block = nullptr;                 // whose turn it is
  unsigned current = 0;                   // thread of it
  unsigned phase = 0;                     // how often the cluster's barrier has opened
  unsigned arrived = 0;                   // there, of the `running` threads of the cluster
  unsigned running = 0;
  size_t granted_bytes = kSharedBytesDefault;
  uint64_t random = 0;
};

// The intrinsics are free functions: the machine they work on can only be a global one.
Simulator& Machine() {
  static Simulator machine;
  return machine;
}

[[noreturn]] void Complain(const char* complaint, const Place& where) {
  std::fprintf(stderr, "simulated GPU: %s at %s:%u (block %u, thread %u)\n", complaint, where.file,
               where.line, blockIdx.x, threadIdx.x);
  std::abort();
}

uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<unsigned> Shuffled(unsigned count, uint64_t* random) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[NextRandom(random) % i]);
  return order;
}

Thread& Self() { return Machine().block->threads[Machine().current]; }

void Wait(Thread::State state, const Place& where) {
  Thread& self = Self();
  self.state = state;
  self.where = where;
  self.fiber->Yield();
}

// The cluster's barrier opens if nobody is left who has yet to arrive.
void OpenClusterBarrier(Simulator* m) {
  if (m->arrived < m->running) return;
  m->arrived = 0;
  ++m->phase;
  if (m->gpu.at_cluster_barrier && m->running > 0) m->gpu.at_cluster_barrier(m->phase);
  for (unsigned b = 0; b < m->grid.cluster; ++b) {
    for (Thread& thread : m->blocks[b].threads) {
      if (thread.state == Thread::State::kAtClusterBarrier) thread.state = Thread::State::kRunnable;
    }
  }
}

void Finish(Simulator* m) {
  Thread& self = Self();
  self.state = Thread::State::kDone;
  ++m->block->finished;
  --m->running;
  if (self.arrivals > m->phase) --m->arrived;
  OpenClusterBarrier(m);
}

void SetUpBlock(Simulator* m, Block* block, unsigned index) {
  while (block->threads.size() < m->grid.threads) {
    block->threads.emplace_back();
    block->threads.back().fiber = std::make_unique<Fiber>([m] {
      (*m->kernel)();
      Finish(m);
    });
  }
  block->index = index;
  block->warps.resize(m->grid.threads / kWarpLanes);
  for (WarpState& warp : block->warps) warp.arrived = 0;
  for (unsigned t = 0; t < m->grid.threads; ++t) {
    Thread& thread = block->threads[t];
    thread.state = Thread::State::kRunnable;
    thread.exchanges = thread.arrivals = thread.waits = 0;
  }
  block->arrived = block->finished = 0;
  block->sum = 0;
  block->shared.assign(sizeof(kvtier::cuda::shared_memory), kPoison);
}

// Gives the turn to `block`, or to none, and with it the shared memory.
void SwitchTo(Simulator* m, Block* block) {
  if (m->block == block) return;
  constexpr size_t kBytes = sizeof(kvtier::cuda::shared_memory);
  auto* const shared = reinterpret_cast<unsigned char*>(kvtier::cuda::shared_memory);
  if (m->block != nullptr) std::memcpy(m->block->shared.data(), shared, kBytes);
  m->block = block;
  if (block == nullptr) return;
  std::memcpy(shared, block->shared.data(), kBytes);
  blockIdx = {block->index, 0, 0};
}

// Threads that wait for ones that will not come.
[[noreturn]] void ComplainOfDeadlock(Simulator* m) {
  for (unsigned b = 0; b < m->grid.cluster; ++b) {
    for (unsigned t = 0; t < m->grid.threads; ++t) {
      if (m->blocks[b].threads[t].state == Thread::State::kDone) continue;
      blockIdx.x = m->blocks[b].index;
      threadIdx.x = t;
      Complain("a barrier or exchange that not all threads reach", m->blocks[b].threads[t].where);
    }
  }
  std::abort();
}

// Gives every thread of a warp that can run a turn. False if none could.
bool RunWarp(Simulator* m, unsigned warp) {
  bool progress = false;
  for (const unsigned lane : Shuffled(kWarpLanes, &m->random)) {
    const unsigned t = warp * kWarpLanes + lane;
    if (m->block->threads[t].state != Thread::State::kRunnable) continue;
    progress = true;
    m->current = t;
    threadIdx = {t, 0, 0};
    m->block->threads[t].fiber->Resume();
  }
  return progress;
}

// Gives every warp of a block a turn. False if none could run.
bool RunWarps(Simulator* m) {
  bool progress = false;
  // Now fair, now as unfair as can be: a warp runs on until only the others can free it.
  const bool greedy = NextRandom(&m->random) % 2 == 0;
  for (const unsigned warp : Shuffled(m->grid.threads / kWarpLanes, &m->random)) {
    while (RunWarp(m, warp)) {
      progress = true;
      if (!greedy) break;
    }
  }
  return progress;
}

// A block's turn in its cluster: until only the others can free it, or for a while.
bool RunBlock(Simulator* m, Block* block) {
  bool progress = false;
  SwitchTo(m, block);
  while (block->finished < m->grid.threads && RunWarps(m)) {
    progress = true;
    if (m->grid.cluster > 1 && NextRandom(&m->random) % 8 == 0) break;
  }
  return progress;
}

void RunCluster(Simulator* m, unsigned cluster) {
  const unsigned blocks = m->grid.cluster;
  m->phase = m->arrived = 0;
  m->running = blocks * m->grid.threads;
  for (unsigned b = 0; b < blocks; ++b) SetUpBlock(m, &m->blocks[b], cluster * blocks + b);
  while (m->running > 0) {
    bool progress = false;
    for (const unsigned b : Shuffled(blocks, &m->random)) progress |= RunBlock(m, &m->blocks[b]);
    if (!progress) ComplainOfDeadlock(m);
  }
  SwitchTo(m, nullptr);
  for (unsigned b = 0; b < blocks; ++b) {
    const Block& block = m->blocks[b];
    if (std::any_of(block.shared.begin() + static_cast<std::ptrdiff_t>(m->grid.shared_bytes),
                    block.shared.end(), [](unsigned char byte) { return byte != kPoison; })) {
      blockIdx.x = block.index;
      Complain("a write past the end of shared memory", Place::Here());
    }
  }
}

}  // namespace

bool Place::operator==(const Place& other) const {
  return line == other.line && std::strcmp(file, other.file) == 0;
}

void SetGpu(const Gpu& gpu) {
  Machine().gpu = gpu;
  Machine().random = gpu.seed;
}
const Gpu& CurrentGpu() { return Machine().gpu; }

bool Run(const Grid& grid, const std::function<void()>& kernel) {
  Simulator& m = Machine();
  const size_t granted = std::exchange(m.granted_bytes, kSharedBytesDefault);
  if (grid.blocks == 0 || grid.threads == 0 || grid.threads > kThreadsMax ||
      grid.threads % kWarpLanes != 0 || grid.shared_bytes > granted ||
      grid.cluster > (m.gpu.has_clusters ? kClusterMax : 1) || !std::has_single_bit(grid.cluster) ||
      grid.blocks % grid.cluster != 0) {
    return false;
  }
  m.grid = grid;
  m.kernel = &kernel;
  gridDim = dim3(grid.blocks);
  blockDim = dim3(grid.threads);
  for (const unsigned c : Shuffled(grid.blocks / grid.cluster, &m.random)) RunCluster(&m, c);
  return true;
}

uint64_t BlockBarrier(uint64_t value, const Place& where) {
  const unsigned threads = Machine().grid.threads;
  Block& block = *Machine().block;
  Require(block.finished == 0, "a barrier that other threads have left the kernel before", where);
  block.sum += value;
  if (++block.arrived < threads) {
    Wait(Thread::State::kAtBlockBarrier, where);
  } else {
    for (unsigned t = 0; t < threads; ++t) {
      Thread& other = block.threads[t];
      Require(t == Machine().current || other.where == where,
              "a barrier that other threads reach at another line", where);
      other.state = Thread::State::kRunnable;
    }
    block.arrived = 0;
    block.released_sum = std::exchange(block.sum, 0);
  }
  return block.released_sum;
}

const uint64_t* Exchange(uint64_t value, const Place& where) {
  Block& block = *Machine().block;
  const unsigned current = Machine().current;
  WarpState& warp = block.warps[current / kWarpLanes];
  const unsigned buffer = block.threads[current].exchanges++ % 2;
  warp.values[buffer][current % kWarpLanes] = value;
  if (++warp.arrived < kWarpLanes) {
    Wait(Thread::State::kAtExchange, where);
  } else {
    const unsigned first = current / kWarpLanes * kWarpLanes;
    for (unsigned t = first; t < first + kWarpLanes; ++t) {
      Thread& other = block.threads[t];
      Require(t == current || other.where == where,
              "an exchange that other lanes reach at another line", where);
      other.state = Thread::State::kRunnable;
    }
    warp.arrived = 0;
  }
  return warp.values[buffer];
}

void ArriveAtCluster(const Place& where) {
  Exchange(0, where);
  Thread& self = Self();
  Require(self.arrivals == self.waits,
          "a second arrival at the cluster's barrier without a wait between", where);
  ++self.arrivals;
  ++Machine().arrived;
  OpenClusterBarrier(&Machine());
}

void WaitForCluster(const Place& where) {
  Exchange(0, where);
  Thread& self = Self();
  Require(self.waits < self.arrivals, "a wait at the cluster's barrier without an arrival", where);
  if (Machine().phase < self.arrivals) Wait(Thread::State::kAtClusterBarrier, where);
  self.waits = self.arrivals;
}

const void* OfFirstBlock(const void* shared, const Place& where) {
  Simulator& m = Machine();
  Block& first = m.blocks[0];
  Require(first.finished == 0, "shared memory of a block that has left the kernel", where);
  if (m.block == &first) return shared;
  return first.shared.data() +
         (static_cast<const unsigned char*>(shared) -
          reinterpret_cast<const unsigned char*>(kvtier::cuda::shared_memory));
}

void Require(bool holds, const char* complaint, const Place& where) {
  if (!holds) Complain(complaint, where);
}

void RequireAllLanes(unsigned mask, const Place& where) {
  Require(mask == 0xffffffffu, "an exchange for some lanes only, which is not simulated", where);
}

}  // namespace simt

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = simt::CurrentGpu().multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = simt::CurrentGpu().has_clusters ? 9 : 8;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = simt::CurrentGpu().shared_bytes_max;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  if (value > simt::CurrentGpu().shared_bytes_max) return cudaErrorInvalidValue;
  simt::Machine().granted_bytes = static_cast<size_t>(value);
  return cudaSuccess;
}
