// The CUDA kernels on a GPU against the sequential reference, bit for bit: launched one by one and
// replayed from graphs. KVTIER_PARITY_STEPS changes the number of steps of a shape.
#include "tests/gpu/parity.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/cuda_implementation.h"

namespace kvtier::testing {
namespace {

int32_t StepsOf(const ParityCase& c) {
  const char* const steps = std::getenv("KVTIER_PARITY_STEPS");
  return steps == nullptr ? c.steps : std::atoi(steps);
}

std::string PlayOnGpu(const ParityCase& c, uint64_t seed, bool graph) {
  const Implementation cuda = Cuda({.name = graph ? "CudaGraph" : "CudaEager",
                                    .threads = c.threads,
                                    .graph = graph,
                                    .shared_in_host_memory = graph});
  return PlayParity(c, seed, StepsOf(c), Reference(), cuda);
}

class ParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, LaunchedOneByOne) { EXPECT_EQ(PlayOnGpu(GetParam(), 1, false), ""); }

TEST_P(ParityTest, ReplayedFromGraphs) { EXPECT_EQ(PlayOnGpu(GetParam(), 2, true), ""); }

std::string CaseName(const ::testing::TestParamInfo<ParityCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Small, ParityTest, ::testing::ValuesIn(SmallParityCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Large, ParityTest, ::testing::ValuesIn(LargeParityCases()), CaseName);

TEST(LargeCalls, LaunchedOneByOne) {
  EXPECT_EQ(PlayLargeCalls(1, 40, Reference(), Cuda({.name = "CudaEager"})), "");
}

TEST(LargeCalls, ReplayedFromGraphs) {
  const Implementation cuda =
      Cuda({.name = "CudaGraph", .graph = true, .shared_in_host_memory = true});
  EXPECT_EQ(PlayLargeCalls(2, 20, Reference(), cuda), "");
}

}  // namespace
}  // namespace kvtier::testing
