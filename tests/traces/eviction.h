// What a policy misses on a recorded trace: rows to copy, by step.
#pragma once

#include <cstdint>
#include <vector>

#include "client/trace/trace_file.h"
#include "kernels/params.h"

namespace kvtier::traces {

// Misses of each step over all layers, from an empty region; each layer is a group of its own,
// with the trace's top_k and `hot_size` (>= top_k) hot slots. The newest row is the step's own,
// every row is backed. By the CPU kernels, without the bytes.
std::vector<int64_t> MissesByStep(const client::Trace& trace, int32_t hot_size,
                                  EvictionPolicy policy);

// Misses of all steps, and of those after the first quarter, in which buffers fill.
struct Misses {
  int64_t all = 0;
  int64_t after_first_quarter = 0;
};
Misses MissesOf(const client::Trace& trace, int32_t hot_size, EvictionPolicy policy);

}  // namespace kvtier::traces
