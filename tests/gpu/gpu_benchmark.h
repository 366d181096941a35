// How the benchmarks of this folder begin and end.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "tests/benchmark/report.h"
#include "tests/gpu/cuda_arena.h"
#include "tests/gpu/cuda_implementation.h"
#include "tests/gpu/gpu_machine.h"

namespace kvtier::testing {

// Options that all of them have.
struct GpuBenchmarkOptions {
  explicit GpuBenchmarkOptions(BenchmarkFlags* flags)
      : pool(flags->Text("pool", "memfd")),
        json(flags->Text("json", "")),
        commit(flags->Text("commit", "")),
        repeats(flags->Number("repeats", 7)) {}

  std::string pool;    // PinnedPool's kinds
  std::string json;    // a file, "" none
  std::string commit;  // as it shall stand in the report
  int32_t repeats;
};

// FILE_machine.json, before anything else is written.
inline void WriteMachine(const GpuBenchmarkOptions& options, const JsonObject& ceilings) {
  WriteText(MachinePath(options.json), DescribeGpuMachine()
                                           .Add("commit", options.commit)
                                           .AddJson("ceilings", ceilings.ToString())
                                           .ToString());
}

// Calls `run` with a stream, if there is a GPU; it returns how much came out wrong. The result is
// the status of the process.
inline int RunGpuBenchmark(const std::function<int64_t(cudaStream_t stream)>& run) {
  const std::string why = WhyNoGpu();
  if (!why.empty()) {
    std::printf("skipped: NOTHING WAS MEASURED, there is no GPU here: %s\n", why.c_str());
    return kSkipped;
  }
  cudaStream_t stream = nullptr;
  RequireCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const int64_t wrong = run(stream);
  RequireCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  if (wrong > 0) std::printf("WRONG: %lld results\n", static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace kvtier::testing
