// main() of tests that need a GPU. Without one they are skipped, and say so.
#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_implementation.h"

namespace {

TEST(Gpu, IsThere) {
  const std::string why = kvtier::testing::WhyNoGpu();
  if (!why.empty()) GTEST_SKIP() << "All tests of this file are skipped: " << why;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  // The one test that then remains says why.
  if (!kvtier::testing::WhyNoGpu().empty()) ::testing::GTEST_FLAG(filter) = "Gpu.IsThere";
  return RUN_ALL_TESTS();
}
