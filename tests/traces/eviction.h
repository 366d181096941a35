// What a policy misses on a recorded trace: rows that cross PCIe, by step.
#pragma once

#include <cstdint>
#include <vector>

#include "client/trace/trace_file.h"
#include "kernels/params.h"

namespace kvtier::traces {

// Rows that each step copies from the host pool over all layers, from an empty region: its misses
// but for those that stayed on the device as kept rows (aged). Each layer is a group of its own,
// with the trace's top_k and `hot_size` (>= top_k) hot slots. The newest row is the step's own,
// every row is backed, the newest one after its step. By the CPU kernels, without the bytes.
std::vector<int64_t> MissesByStep(const client::Trace& trace, int32_t hot_size,
                                  EvictionPolicy policy);

// The same of all steps, and of those after the first quarter, in which buffers fill.
struct Misses {
  int64_t all = 0;
  int64_t after_first_quarter = 0;
};
Misses MissesOf(const client::Trace& trace, int32_t hot_size, EvictionPolicy policy);

}  // namespace kvtier::traces
