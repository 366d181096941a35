// The GPU that measures, for the report of a benchmark.
#pragma once

#include "tests/benchmark/report.h"

namespace kvtier::testing {

// DescribeMachine() and device 0: its name, driver, and link. Without a GPU: without those.
JsonObject DescribeGpuMachine();

}  // namespace kvtier::testing
