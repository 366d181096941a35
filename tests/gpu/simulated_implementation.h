// kvtier::cuda on the simulated GPU, for tests that take an implementation.
#pragma once

#include <cstdint>

#include "kernels/testing/implementation.h"
#include "tests/gpu/simt/simt.h"

namespace kvtier::testing {

// Blocks that resolve have `threads` threads. Ends the process if a call is refused, leaves a
// workspace header that is not zero, or writes past the workspace.
Implementation SimulatedCuda(const simt::Gpu& gpu, int32_t threads);

}  // namespace kvtier::testing
