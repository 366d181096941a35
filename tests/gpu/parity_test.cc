// The CUDA kernels on a GPU against the sequential reference, bit for bit: launched one by one and
// replayed from graphs. KVTIER_PARITY_STEPS changes the number of steps of a shape, and
// KVTIER_PARITY_SEED (1) what they are.
#include "tests/gpu/parity.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/cuda_implementation.h"

namespace kvtier::testing {
namespace {

int32_t FromEnvironment(const char* name, int32_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// Of launches; replays have the next one.
uint64_t Seed() { return static_cast<uint64_t>(FromEnvironment("KVTIER_PARITY_SEED", 1)); }

std::string PlayOnGpu(const ParityCase& c, bool graph) {
  const Implementation cuda = Cuda({.name = graph ? "CudaGraph" : "CudaEager",
                                    .threads = c.threads,
                                    .copying_blocks = graph ? 3 : 0,
                                    .cluster = graph ? 4 : 0,
                                    .graph = graph,
                                    .generations_in_host_memory = graph});
  return PlayParity(c, Seed() + (graph ? 1 : 0), FromEnvironment("KVTIER_PARITY_STEPS", c.steps),
                    Reference(), cuda);
}

class ParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, LaunchedOneByOne) { EXPECT_EQ(PlayOnGpu(GetParam(), /*graph=*/false), ""); }

TEST_P(ParityTest, ReplayedFromGraphs) { EXPECT_EQ(PlayOnGpu(GetParam(), /*graph=*/true), ""); }

std::string CaseName(const ::testing::TestParamInfo<ParityCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Small, ParityTest, ::testing::ValuesIn(SmallParityCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Large, ParityTest, ::testing::ValuesIn(LargeParityCases()), CaseName);

TEST(LargeCalls, LaunchedOneByOne) {
  EXPECT_EQ(PlayLargeCalls(Seed(), 40, Reference(), Cuda({.name = "CudaEager"})), "");
}

TEST(LargeCalls, ReplayedFromGraphs) {
  const Implementation cuda =
      Cuda({.name = "CudaGraph", .graph = true, .generations_in_host_memory = true});
  EXPECT_EQ(PlayLargeCalls(Seed() + 1, 20, Reference(), cuda), "");
}

}  // namespace
}  // namespace kvtier::testing
