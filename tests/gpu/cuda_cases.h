// Included before a test file of kernels/ (by -include): makes it run on a GPU.
#pragma once

#include "kernels/testing/case_fixture.h"
#include "tests/gpu/cuda_implementation.h"

#undef KVTIER_INSTANTIATE
#define KVTIER_INSTANTIATE(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Gpu, suite,                                                    \
                           ::testing::ValuesIn(::kvtier::testing::CudaImplementations()), \
                           ::kvtier::testing::ImplementationName)
