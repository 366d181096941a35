// Included before a test file of kernels/ (by -include): makes it run on a simulated GPU.
#pragma once

#include "kernels/testing/case_fixture.h"
#include "tests/gpu/simulated_implementation.h"

#undef KVTIER_INSTANTIATE
#define KVTIER_INSTANTIATE(suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                                       \
      Simulated, suite,                                                                           \
      ::testing::Values(::kvtier::testing::SimulatedCuda({.seed = 1}, 96),                        \
                        ::kvtier::testing::SimulatedCuda({.seed = 2, .has_clusters = true}, 96)), \
      ::kvtier::testing::ImplementationName)
