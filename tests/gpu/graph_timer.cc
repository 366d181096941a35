#include "tests/gpu/graph_timer.h"

#include "tests/gpu/cuda_arena.h"

namespace kvtier::testing {
namespace {

cudaGraphExec_t Capture(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  RequireCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin of capture");
  enqueue();
  RequireCuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  RequireCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  RequireCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  RequireCuda(cudaGraphUpload(executable, stream), "cudaGraphUpload");
  return executable;
}

double Between(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  RequireCuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return double{milliseconds} * 1000;
}

}  // namespace

GraphTimer::GraphTimer(cudaStream_t stream, int32_t steps,
                       const std::function<cudaError_t(int32_t)>& enqueue)
    : stream_(stream), between_(static_cast<size_t>(steps) + 1) {
  RequireCuda(cudaEventCreate(&begin_), "cudaEventCreate");
  RequireCuda(cudaEventCreate(&end_), "cudaEventCreate");
  for (cudaEvent_t& event : between_) RequireCuda(cudaEventCreate(&event), "cudaEventCreate");
  plain_ = Capture(stream, [&] {
    for (int32_t step = 0; step < steps; ++step) RequireCuda(enqueue(step), "a step");
  });
  // External: nodes of the graph, whose time is that of the replay.
  const auto record = [&](cudaEvent_t event) {
    RequireCuda(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal), "record");
  };
  with_events_ = Capture(stream, [&] {
    record(between_[0]);
    for (int32_t step = 0; step < steps; ++step) {
      RequireCuda(enqueue(step), "a step");
      record(between_[static_cast<size_t>(step) + 1]);
    }
  });
}

GraphTimer::~GraphTimer() {
  (void)cudaGraphExecDestroy(plain_);
  (void)cudaGraphExecDestroy(with_events_);
  for (cudaEvent_t event : between_) (void)cudaEventDestroy(event);
  (void)cudaEventDestroy(begin_);
  (void)cudaEventDestroy(end_);
}

// An idle stream first: the begin is then right before the graph.
void GraphTimer::Replay(cudaGraphExec_t graph) {
  RequireCuda(cudaStreamSynchronize(stream_), "before the graph");
  RequireCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  RequireCuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
  RequireCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
  RequireCuda(cudaStreamSynchronize(stream_), "graph");
}

double GraphTimer::Microseconds() {
  Replay(plain_);
  return Between(begin_, end_);
}

std::vector<double> GraphTimer::MicrosecondsOfEach() {
  Replay(with_events_);
  std::vector<double> microseconds;
  for (size_t i = 1; i < between_.size(); ++i) {
    microseconds.push_back(Between(between_[i - 1], between_[i]));
  }
  return microseconds;
}

}  // namespace kvtier::testing
