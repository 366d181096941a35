// What no swap-in and no backup can beat on this machine, measured in the same run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "tests/benchmark/report.h"
#include "tests/gpu/pinned_pool.h"

namespace kvtier::testing {

// Best of five copies of (up to) 1 GiB by the copy engine, GB/s.
double CopyEngineToDevice(const PinnedPool& pool, cudaStream_t stream);
double CopyEngineToHost(const PinnedPool& pool, cudaStream_t stream);

enum class RowDirection { kToDevice, kToPool };

// Microseconds of a kernel that copies `rows` of the slots and does nothing else: the best of
// several numbers of blocks, each the median of three graphs of 48 launches. Launches take other
// parts of `slots`, which should hold 48 * rows; it begins again where there are fewer.
double RowCopyMicroseconds(const PinnedPool& pool, const std::vector<int32_t>& slots, int32_t rows,
                           int32_t row_bytes, RowDirection direction, cudaStream_t stream);

// An empty kernel in a graph, and the same with an event behind it.
struct EmptyKernel {
  double us;
  double us_with_event;
};
EmptyKernel MeasureEmptyKernel(cudaStream_t stream);

// All of the above as they are printed and written: the ceilings of a run. `slots`: rows of the
// pool at random, of which 65,536 are gathered and scattered.
JsonObject MeasureCeilings(const PinnedPool& pool, const std::vector<int32_t>& slots,
                           int32_t row_bytes, cudaStream_t stream);

}  // namespace kvtier::testing
