// The CPU backend passes the suite, with one thread a stream and with more.

#include "server/device/conformance/conformance.h"
#include "server/device/cpu/cpu_backend.h"

namespace kvtier {
namespace {

ConformanceParam WithThreads(const char* name, int threads) {
  return {name, [threads] { return MakeCpuBackend({.threads = threads}); }};
}

INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance,
                         ::testing::Values(WithThreads("OneThread", 1),
                                           WithThreads("TwoThreads", 2)),
                         ConformanceName);

}  // namespace
}  // namespace kvtier
