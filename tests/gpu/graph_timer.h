// How long the steps of a CUDA graph take.
//
//   GraphTimer timer(stream, 48, [&](int32_t step) { return cuda::SwapIn(...); });
//   restore(); const double us = timer.Microseconds() / 48;      // of the whole graph
//   restore(); const auto each = timer.MicrosecondsOfEach();     // with an event around each step
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace kvtier::testing {

class GraphTimer {
 public:
  // `enqueue(step)` enqueues one step on `stream`; it is called while the stream is captured.
  GraphTimer(cudaStream_t stream, int32_t steps,
             const std::function<cudaError_t(int32_t step)>& enqueue);
  ~GraphTimer();
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  // Replays the steps once, after what the stream holds. Waits.
  double Microseconds();
  // The same with an event between any two steps, which costs time of its own (see what an empty
  // kernel takes): for percentiles.
  std::vector<double> MicrosecondsOfEach();

 private:
  void Replay(cudaGraphExec_t graph);

  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<cudaEvent_t> between_;  // before the first, ..., after the last
  cudaGraphExec_t plain_ = nullptr, with_events_ = nullptr;
};

}  // namespace kvtier::testing
