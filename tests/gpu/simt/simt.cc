#include "tests/gpu/simt/simt.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/gpu/simt/fiber.h"

// The one dynamic shared memory: blocks run one after the other.
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
  enum class State { kRunnable, kAtBlockBarrier, kAtExchange, kDone };
  State state = State::kDone;
  Place where = {};
  unsigned exchanges = 0;  // made so far, which chooses the buffer of the next
  std::unique_ptr<Fiber> fiber;
};

struct WarpState {
  unsigned arrived = 0;
  // Two, so that a lane that is ahead does not overwrite what others have yet to read.
  uint64_t values[2][kWarpLanes];
};

struct Simulator {
  Gpu gpu;
  Grid grid = {};
  const std::function<void()>* kernel = nullptr;
  std::vector<Thread> threads;
  std::vector<WarpState> warps;
  unsigned current = 0;
  unsigned arrived = 0;  // at the block barrier
  unsigned finished = 0;
  uint64_t sum = 0;  // of the barrier's values
  uint64_t released_sum = 0;
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

void Wait(Thread::State state, const Place& where) {
  Thread& self = Machine().threads[Machine().current];
  self.state = state;
  self.where = where;
  self.fiber->Yield();
}

void SetUpThreads(Simulator* m) {
  while (m->threads.size() < m->grid.threads) {
    m->threads.emplace_back();
    m->threads.back().fiber = std::make_unique<Fiber>([m] {
      (*m->kernel)();
      m->threads[m->current].state = Thread::State::kDone;
      ++m->finished;
    });
  }
  m->warps.resize(m->grid.threads / kWarpLanes);
  for (WarpState& warp : m->warps) warp.arrived = 0;
  for (unsigned t = 0; t < m->grid.threads; ++t) {
    m->threads[t].state = Thread::State::kRunnable;
    m->threads[t].exchanges = 0;
  }
  m->arrived = m->finished = 0;
  m->sum = 0;
}

// Threads that wait for ones that will not come.
[[noreturn]] void ComplainOfDeadlock(const Simulator& m) {
  for (unsigned t = 0; t < m.grid.threads; ++t) {
    if (m.threads[t].state == Thread::State::kDone) continue;
    threadIdx.x = t;
    Complain("a barrier or exchange that not all threads reach", m.threads[t].where);
  }
  std::abort();
}

// Gives every thread of a warp that can run a turn. False if none could.
bool RunWarp(Simulator* m, unsigned warp) {
  bool progress = false;
  for (const unsigned lane : Shuffled(kWarpLanes, &m->random)) {
    const unsigned t = warp * kWarpLanes + lane;
    if (m->threads[t].state != Thread::State::kRunnable) continue;
    progress = true;
    m->current = t;
    threadIdx = {t, 0, 0};
    m->threads[t].fiber->Resume();
  }
  return progress;
}

void RunBlock(Simulator* m, unsigned block) {
  blockIdx = {block, 0, 0};
  auto* const shared = reinterpret_cast<unsigned char*>(kvtier::cuda::shared_memory);
  std::memset(shared, kPoison, sizeof(kvtier::cuda::shared_memory));
  SetUpThreads(m);
  const unsigned warps = m->grid.threads / kWarpLanes;
  while (m->finished < m->grid.threads) {
    bool progress = false;
    // Now fair, now as unfair as can be: a warp runs on until only the others can free it.
    const bool greedy = NextRandom(&m->random) % 2 == 0;
    for (const unsigned warp : Shuffled(warps, &m->random)) {
      while (RunWarp(m, warp)) {
        progress = true;
        if (!greedy) break;
      }
    }
    if (!progress) ComplainOfDeadlock(*m);
  }
  for (size_t i = m->grid.shared_bytes; i < sizeof(kvtier::cuda::shared_memory); ++i) {
    if (shared[i] != kPoison) Complain("a write past the end of shared memory", Place::Here());
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
      grid.threads % kWarpLanes != 0 || grid.shared_bytes > granted) {
    return false;
  }
  m.grid = grid;
  m.kernel = &kernel;
  gridDim = dim3(grid.blocks);
  blockDim = dim3(grid.threads);
  for (const unsigned block : Shuffled(grid.blocks, &m.random)) RunBlock(&m, block);
  return true;
}

uint64_t BlockBarrier(uint64_t value, const Place& where) {
  Simulator& m = Machine();
  Require(m.finished == 0, "a barrier that other threads have left the kernel before", where);
  m.sum += value;
  if (++m.arrived < m.grid.threads) {
    Wait(Thread::State::kAtBlockBarrier, where);
  } else {
    for (unsigned t = 0; t < m.grid.threads; ++t) {
      Thread& other = m.threads[t];
      Require(t == m.current || other.where == where,
              "a barrier that other threads reach at another line", where);
      other.state = Thread::State::kRunnable;
    }
    m.arrived = 0;
    m.released_sum = std::exchange(m.sum, 0);
  }
  return m.released_sum;
}

const uint64_t* Exchange(uint64_t value, const Place& where) {
  Simulator& m = Machine();
  WarpState& warp = m.warps[m.current / kWarpLanes];
  const unsigned buffer = m.threads[m.current].exchanges++ % 2;
  warp.values[buffer][m.current % kWarpLanes] = value;
  if (++warp.arrived < kWarpLanes) {
    Wait(Thread::State::kAtExchange, where);
  } else {
    const unsigned first = m.current / kWarpLanes * kWarpLanes;
    for (unsigned t = first; t < first + kWarpLanes; ++t) {
      Thread& other = m.threads[t];
      Require(t == m.current || other.where == where,
              "an exchange that other lanes reach at another line", where);
      other.state = Thread::State::kRunnable;
    }
    warp.arrived = 0;
  }
  return warp.values[buffer];
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
      *value = 8;
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
