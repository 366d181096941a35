// What one swap-in costs a worker, by plane.
//
//   plane_benchmark          needs a GPU, and server/kvtierd in the current folder
//
// One layer group of one layer, top_k 2048, hot_size 4096, rows of 656 bytes, 8 requests; a step
// asks for the same positions as the one before, but for 1 in 10, which are misses. Steps follow
// one another without a pause. "us" is the time from the call to the end of the work on the
// worker's stream; "host us" what the call itself takes. Medians and 99th percentiles of 300 steps
// after 30. Busy: the worker's own kernels compute on every multiprocessor all the time, on another
// stream.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cache.h"
#include "client/session.h"
#include "client/steps.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/gpu/busy.h"

namespace kvtier::e2e {
namespace {

constexpr int32_t kTopK = 2048, kHotSize = 4096, kRowBytes = 656, kRequests = 8;
constexpr int32_t kPositions = 32768, kBlocks = kPositions / 64;
constexpr int32_t kMisses = kTopK / 10;
constexpr int kWarmUp = 30, kMeasured = 300;

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    const cudaError_t error = cudaFree(nullptr);
    if (error != cudaSuccess) GTEST_SKIP() << cudaGetErrorString(error);
    daemon_ =
        std::make_unique<Daemon>(DaemonOptions{.pool_bytes = int64_t{1} << 30, .backend = "cuda"});
    auto session = daemon_->Open("bench");
    Check(session.status());
    session_ = std::make_unique<client::Session>(*std::move(session));
    v1::CacheLayout layout;
    layout.set_block_count(kBlocks * kRequests);
    layout.set_max_requests(kRequests);
    v1::LayerGroupLayout* group = layout.add_groups();
    group->set_top_k(kTopK);
    group->set_hot_size(kHotSize);
    v1::LayerLayout* layer = group->add_layers();
    layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
    layer->set_row_bytes(kRowBytes);
    auto cache = client::Cache::Attach(
        *session_, {.cache = "kv", .layout = layout, .wait_for_pool = absl::Minutes(1)});
    Check(cache.status());
    cache_ = std::make_unique<client::Cache>(*std::move(cache));
    std::vector<int32_t> regions, newest(kRequests, -1);
    for (int r = 0; r < kRequests; ++r) {
      auto request = cache_->Admit("r" + std::to_string(r), kBlocks);
      Check(request.status());
      Check(request->AssignBlocks(kBlocks).status());
      std::vector<int32_t> slots(kPositions);
      for (int p = 0; p < kPositions; ++p) slots[p] = request->SlotOf(p);
      Check(cache_->MarkBacked(0, slots));
      regions.push_back(request->region());
      requests_.push_back(*std::move(request));
    }
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Check(cudaStreamCreateWithFlags(&busy_, cudaStreamNonBlocking));
    const client::CacheView& view = cache_->view();
    const int32_t rows = kRequests;
    Check(cudaMemcpy(view.row_to_request.data(), regions.data(), rows * 4, cudaMemcpyDefault));
    Check(cudaMemcpy(view.newest_slot.data(), newest.data(), rows * 4, cudaMemcpyDefault));
    Check(cudaMemcpy(view.num_real_rows, &rows, 4, cudaMemcpyDefault));
    for (int s = 0; s < kWarmUp + kMeasured; ++s) {
      int32_t* topk = nullptr;
      Check(cudaMallocHost(reinterpret_cast<void**>(&topk), kRequests * kTopK * 4));
      for (int i = 0; i < kRequests * kTopK; ++i) {
        topk[i] = (s * kMisses + i % kTopK) % kPositions;
      }
      topk_.push_back(topk);
    }
  }

  void TearDown() override {
    for (int32_t* topk : topk_) (void)cudaFreeHost(topk);
    requests_.clear();
    cache_.reset();
  }

  // `call` swaps in on stream_, or has it swapped in ordered on stream_.
  void Measure(const char* plane, const std::function<absl::Status()>& call) {
    for (const bool busy : {false, true}) {
      std::vector<double> total, host;
      const int64_t misses = cache_->counts(0)[Counter::kMisses];
      for (size_t s = 0; s < topk_.size(); ++s) {
        Check(cudaMemcpyAsync(cache_->view().groups[0].topk.data(), topk_[s], kRequests * kTopK * 4,
                              cudaMemcpyHostToDevice, stream_));
        Check(cudaStreamSynchronize(stream_));
        if (busy) Check(testing::KeepBusy(3000, busy_));
        const Clock::time_point begin = Clock::now();
        Check(call());
        const Clock::time_point returned = Clock::now();
        Check(cudaStreamSynchronize(stream_));
        const Clock::time_point end = Clock::now();
        if (busy) Check(cudaStreamSynchronize(busy_));
        if (s < kWarmUp) continue;
        total.push_back(Microseconds(end - begin));
        host.push_back(Microseconds(returned - begin));
      }
      const int64_t per_step =
          (cache_->counts(0)[Counter::kMisses] - misses) / static_cast<int64_t>(topk_.size());
      std::printf("| %s | %s | %.1f | %.1f | %.1f | %ld |\n", plane, busy ? "busy" : "idle",
                  Percentile(total, 0.5), Percentile(total, 0.99), Percentile(host, 0.5), per_step);
      std::fflush(stdout);
    }
  }

  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Cache> cache_;
  std::vector<client::Request> requests_;
  std::vector<int32_t*> topk_;
  cudaStream_t stream_ = nullptr, busy_ = nullptr;
};

TEST_F(Bench, SwapInByPlane) {
  std::printf("| plane | GPU | us | p99 us | host us | misses/step |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  Check(cache_->SwapIn(0, kRequests, {.device_stream = stream_}));
  Check(cudaStreamEndCapture(stream_, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  Measure("in-process, graph", [&] {
    return cudaGraphLaunch(executable, stream_) == cudaSuccess ? absl::OkStatus()
                                                               : absl::InternalError("launch");
  });
  Measure("in-process, eager",
          [&] { return cache_->SwapIn(0, kRequests, {.device_stream = stream_}); });
  Measure("RPC, unary, streams ordered",
          [&] { return cache_->SwapInRpc(0, kRequests, {.device_stream = stream_}).status(); });
  Measure("RPC, unary, host waits",
          [&] { return cache_->SwapInRpc(0, kRequests, {}, /*wait=*/true).status(); });
  auto steps = client::Steps::Open(*cache_, stream_);
  Check(steps.status());
  Measure("RPC, streamed, streams ordered", [&]() -> absl::Status {
    if (absl::Status status = steps->SwapIn(0, kRequests).status(); !status.ok()) return status;
    const absl::StatusOr<client::StepResult> result = steps->Next();
    return result.ok() ? result->status : result.status();
  });
}

}  // namespace
}  // namespace kvtier::e2e
