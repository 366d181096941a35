// The source of the CUDA kernels on a simulated GPU against the sequential reference, on any
// machine. parity_test.cc is the same on a real one.
#include "gtest/gtest.h"
#include "tests/gpu/parity.h"
#include "tests/gpu/simulated_implementation.h"

namespace kvtier::testing {
namespace {

class SimulatedParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(SimulatedParityTest, KernelsDoWhatTheReferenceDoes) {
  const ParityCase& c = GetParam();
  EXPECT_EQ(PlayParity(c, /*seed=*/1, c.steps, Reference(), SimulatedCuda({.seed = 1}, c.threads)),
            "");
}

// Several blocks resolve a row side by side, each for itself.
TEST_P(SimulatedParityTest, BlocksOfAClusterDoWhatTheReferenceDoes) {
  const ParityCase& c = GetParam();
  const simt::Gpu gpu = {.seed = 4, .has_clusters = true};
  EXPECT_EQ(PlayParity(c, /*seed=*/3, c.steps / 2, Reference(), SimulatedCuda(gpu, c.threads)), "");
}

// A GPU whose blocks have so little shared memory that the tables lie in the workspace.
TEST_P(SimulatedParityTest, TablesMayLieInTheWorkspace) {
  const ParityCase& c = GetParam();
  const simt::Gpu gpu = {.multiprocessors = 2, .shared_bytes_max = 1024, .seed = 2};
  EXPECT_EQ(PlayParity(c, /*seed=*/2, c.steps / 2, Reference(), SimulatedCuda(gpu, c.threads)), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, SimulatedParityTest, ::testing::ValuesIn(SmallParityCases()),
                         [](const auto& info) { return info.param.name; });

TEST(SimulatedLargeCalls, KernelsDoWhatTheReferenceDoes) {
  EXPECT_EQ(PlayLargeCalls(/*seed=*/1, /*calls=*/6, Reference(), SimulatedCuda({.seed = 3}, 64)),
            "");
}

}  // namespace
}  // namespace kvtier::testing
