// What a large host pool costs to start, to join and to read from a GPU.
//
//   pool_benchmark [PART] [GIB]     pin, attach, gather or all (the default); of so many GiB
//   instead
//                                   of 8, 32 and 48; gather needs 4
//
// Ends with 1 if a row that arrived is wrong. Memory: what is asked for, and no more at a time.
// Tables are followed by JSON lines.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "server/device/cuda/cuda_backend.h"
#include "tests/gpu/cuda_implementation.h"
#include "tests/gpu/pool_gather.h"
#include "tests/gpu/pool_start.h"

namespace kvtier::testing {
namespace {

int Main(const std::string& part, int64_t gib) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 0;
  }
  const auto backend = MakeCudaBackend({});
  if (!backend.ok()) {
    std::printf("%s\n", backend.status().ToString().c_str());
    return 1;
  }
  // A device in use: what the pool takes is registered with the driver at once.
  const auto stream = (*backend)->CreateStream((*backend)->Devices().front().uuid);
  if (!stream.ok()) {
    std::printf("%s\n", stream.status().ToString().c_str());
    return 1;
  }
  const auto threads =
      static_cast<int32_t>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  const auto bytes = [gib](int64_t without) { return (gib > 0 ? gib : without) << 30; };
  const bool all = part == "all";
  int64_t wrong = 0;
  if (all || part == "pin") MeasurePin(backend->get(), bytes(8), threads);
  if (all || part == "attach") MeasureAttach(backend->get(), bytes(32), threads);
  if (all || part == "gather") wrong = MeasureGather(backend->get(), bytes(48), threads);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "all";
  if (part == "--attach" && argc == 5) {
    return kvtier::testing::AttachAsWorker(std::atoi(argv[2]), std::atoll(argv[3]),
                                           std::atoi(argv[4]));
  }
  return kvtier::testing::Main(part, argc > 2 ? std::atoll(argv[2]) : 0);
}
