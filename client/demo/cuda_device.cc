// A worker of the demo on a GPU.
//
// Hot memory is the device's alone, so that the worker has host copies of what it writes and
// checks: pinned, and copied on the worker's stream before and after a step. In process, a step is
// two CUDA graphs (swap-in of all groups; backup), captured once and replayed with new inputs; over
// RPC, swap-ins streamed and backups by calls, the daemon's stream is ordered against the worker's.
#include <cuda_runtime_api.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/demo/device.h"
#include "client/steps.h"

namespace kvtier::demo {
namespace {

absl::Status Checked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

#define DEMO_RETURN_IF_ERROR(expression)                                    \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// Pinned host memory, or memory of the GPU.
class Memory {
 public:
  enum class Kind { kPinned, kGpu };
  explicit Memory(Kind kind) : kind_(kind) {}
  Memory(Memory&& other) noexcept
      : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory() { Free(); }

  // At least `bytes`; what it held is lost if it grows.
  absl::Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    Free();
    const cudaError_t error = kind_ == Kind::kPinned
                                  ? cudaHostAlloc(&data_, bytes, cudaHostAllocDefault)
                                  : cudaMalloc(&data_, bytes);
    if (error == cudaSuccess) bytes_ = bytes;
    return Checked(error, "allocation");
  }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void Free() {
    if (data_ != nullptr) {
      (void)(kind_ == Kind::kPinned ? cudaFreeHost(data_) : cudaFree(data_));
    }
    data_ = nullptr;
    bytes_ = 0;
  }

  const Kind kind_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class GpuDevice final : public Device {
 public:
  GpuDevice(client::Cache* cache, Plane plane)
      : cache_(cache), plane_(plane), view_(cache->view()) {}

  ~GpuDevice() override {
    if (stream_ == nullptr) return;
    (void)cudaStreamSynchronize(stream_);
    for (const cudaGraphExec_t graph : {swap_in_, backup_}) {
      if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
    }
    (void)cudaStreamDestroy(stream_);
  }

  absl::Status Start() {
    DEMO_RETURN_IF_ERROR(
        Checked(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    DEMO_RETURN_IF_ERROR(MirrorAll());
    if (plane_ == Plane::kRpc) {
      absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache_, stream_);
      if (!steps.ok()) return steps.status();
      steps_.emplace(*std::move(steps));
      return absl::OkStatus();
    }
    const auto rows = static_cast<int32_t>(view_.row_to_request.size());
    DEMO_RETURN_IF_ERROR(Capture(&swap_in_, [&] { return EnqueueSwapIn(rows); }));
    return Capture(&backup_, [&] { return cache_->BackupNewest(rows, stream_); });
  }

  const client::CacheView& view() const override { return view_; }

  absl::Status SwapIn(int32_t num_rows) override {
    DEMO_RETURN_IF_ERROR(Upload(num_rows));
    if (plane_ == Plane::kInProcess) {
      DEMO_RETURN_IF_ERROR(Checked(cudaGraphLaunch(swap_in_, stream_), "cudaGraphLaunch"));
    } else {
      DEMO_RETURN_IF_ERROR(CallSwapIn(num_rows));
    }
    DEMO_RETURN_IF_ERROR(Download());
    return CheckDone();
  }

  absl::Status Backup(int32_t num_rows) override {
    if (plane_ == Plane::kInProcess) {
      DEMO_RETURN_IF_ERROR(cache_->CheckBackup());
      DEMO_RETURN_IF_ERROR(Checked(cudaGraphLaunch(backup_, stream_), "cudaGraphLaunch"));
    } else {
      DEMO_RETURN_IF_ERROR(cache_->BackupRpc(num_rows, /*wait=*/false, stream_).status());
    }
    DEMO_RETURN_IF_ERROR(Checked(cudaStreamSynchronize(stream_), "backup"));
    return CheckDone();
  }

  absl::Status Prefill(const PrefillRows& rows) override {
    std::vector<int32_t> source_rows(rows.row_count);
    std::iota(source_rows.begin(), source_rows.end(), 0);
    const size_t list_bytes = (rows.row_count * sizeof(int32_t) + 255) / 256 * 256;
    size_t bytes = 3 * list_bytes;
    for (const std::vector<uint8_t>& layer : rows.layers) bytes += (layer.size() + 255) / 256 * 256;
    DEMO_RETURN_IF_ERROR(tensors_.Reserve(bytes));
    uint8_t* place = tensors_.data();
    const auto put = [&](const auto& from) {
      const size_t size = from.size() * sizeof(from[0]);
      uint8_t* const to = std::exchange(place, place + (size + 255) / 256 * 256);
      copied_.Update(
          Checked(cudaMemcpyAsync(to, from.data(), size, cudaMemcpyHostToDevice, stream_), "copy"));
      return to;
    };
    const auto list = [&](const std::vector<int32_t>& from) {
      return std::span<const int32_t>(reinterpret_cast<int32_t*>(put(from)), from.size());
    };
    const auto source = list(source_rows), slots = list(rows.slots), regions = list(rows.regions);
    std::vector<const uint8_t*> layers;
    for (const std::vector<uint8_t>& layer : rows.layers) layers.push_back(put(layer));
    DEMO_RETURN_IF_ERROR(copied_);
    DEMO_RETURN_IF_ERROR(BackupPrefill(cache_, rows, layers, source, slots, regions, stream_));
    return Checked(cudaStreamSynchronize(stream_), "prefill");
  }

 private:
  // One array of the device, and the host's copy of it.
  struct Copied {
    void* device = nullptr;
    void* host = nullptr;
    size_t bytes = 0;
  };

  template <typename T>
  absl::Status Mirror(std::span<T>* span, std::vector<Copied>* copies) {
    using Element = std::remove_const_t<T>;
    auto* const device = const_cast<Element*>(span->data());
    DEMO_RETURN_IF_ERROR(MirrorBytes(device, span->size_bytes(), copies));
    *span = {static_cast<Element*>(copies->back().host), span->size()};
    return absl::OkStatus();
  }

  absl::Status MirrorBytes(void* device, size_t bytes, std::vector<Copied>* copies) {
    mirrors_.emplace_back(Memory::Kind::kPinned);
    DEMO_RETURN_IF_ERROR(mirrors_.back().Reserve(bytes));
    std::memset(mirrors_.back().data(), 0, bytes);
    copies->push_back({device, mirrors_.back().data(), bytes});
    return absl::OkStatus();
  }

  absl::Status MirrorAll() {
    DEMO_RETURN_IF_ERROR(Mirror(&view_.row_to_request, &inputs_));
    DEMO_RETURN_IF_ERROR(Mirror(&view_.newest_slot, &inputs_));
    std::span<int32_t> real_rows(view_.num_real_rows, 1);
    DEMO_RETURN_IF_ERROR(Mirror(&real_rows, &inputs_));
    view_.num_real_rows = real_rows.data();
    for (client::GroupView& group : view_.groups) {
      DEMO_RETURN_IF_ERROR(Mirror(&group.topk, &inputs_));
      DEMO_RETURN_IF_ERROR(Mirror(&group.hot_indices, &outputs_));
      DEMO_RETURN_IF_ERROR(Mirror(&group.miss_mask, &outputs_));
      DEMO_RETURN_IF_ERROR(Mirror(&group.valid_counts, &outputs_));
      DEMO_RETURN_IF_ERROR(Mirror(&group.plan_counts, &outputs_));
      for (client::LayerRows& layer : group.layers) {
        const client::Rows device = layer.hot;
        DEMO_RETURN_IF_ERROR(MirrorBytes(
            device.data(), StorageBytes(device.layout(), device.row_count()), &outputs_));
        layer.hot = client::Rows(static_cast<uint8_t*>(outputs_.back().host), device.layout(),
                                 device.row_count());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Upload(int32_t num_rows) {
    for (const Copied& each : inputs_) {
      copied_.Update(Checked(
          cudaMemcpyAsync(each.device, each.host, each.bytes, cudaMemcpyHostToDevice, stream_),
          "copy of inputs"));
    }
    for (size_t g = 0; g < view_.groups.size(); ++g) {
      const client::GroupView& device = cache_->view().groups[g];
      for (int32_t row = 0; row < num_rows; ++row) {
        const int32_t hot_row = device.newest_hot_row(view_.row_to_request[row]);
        for (size_t l = 0; l < device.layers.size(); ++l) {
          const auto to = device.layers[l].hot.value(hot_row);
          const auto from = view_.groups[g].layers[l].hot.value(hot_row);
          copied_.Update(Checked(
              cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyHostToDevice, stream_),
              "copy of newest rows"));
        }
      }
    }
    return copied_;
  }

  absl::Status Download() {
    for (const Copied& each : outputs_) {
      copied_.Update(Checked(
          cudaMemcpyAsync(each.host, each.device, each.bytes, cudaMemcpyDeviceToHost, stream_),
          "copy of outputs"));
    }
    DEMO_RETURN_IF_ERROR(copied_);
    return Checked(cudaStreamSynchronize(stream_), "swap-in");
  }

  // Has the daemon done what the stream has passed? Where it died, the stream was only let go.
  absl::Status CheckDone() const {
    return plane_ == Plane::kRpc ? cache_->CheckBackup() : absl::OkStatus();
  }

  absl::Status EnqueueSwapIn(int32_t num_rows) {
    for (int32_t g = 0; g < static_cast<int32_t>(view_.groups.size()); ++g) {
      DEMO_RETURN_IF_ERROR(
          cache_->SwapIn(g, num_rows, {.layers = kLeader, .device_stream = stream_}));
      DEMO_RETURN_IF_ERROR(cache_->ReplayPlan(g, num_rows, std::nullopt, stream_));
    }
    return absl::OkStatus();
  }

  absl::Status CallSwapIn(int32_t num_rows) {
    for (int32_t g = 0; g < static_cast<int32_t>(view_.groups.size()); ++g) {
      DEMO_RETURN_IF_ERROR(steps_->SwapIn(g, num_rows, {.layers = kLeader}).status());
      DEMO_RETURN_IF_ERROR(steps_->ReplayPlan(g, num_rows).status());
    }
    while (steps_->in_flight() > 0) {
      absl::StatusOr<client::StepResult> result = steps_->Next();
      if (!result.ok()) return result.status();
      if (!result->status.ok()) return result->status;
    }
    return absl::OkStatus();
  }

  template <typename Enqueue>
  absl::Status Capture(cudaGraphExec_t* executable, const Enqueue& enqueue) {
    DEMO_RETURN_IF_ERROR(
        Checked(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
    absl::Status status = enqueue();
    cudaGraph_t graph = nullptr;
    status.Update(Checked(cudaStreamEndCapture(stream_, &graph), "capture"));
    if (status.ok()) status = Checked(cudaGraphInstantiate(executable, graph, 0), "instantiation");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return status;
  }

  client::Cache* const cache_;
  const Plane plane_;
  client::CacheView view_;  // host copies of what is hot
  cudaStream_t stream_ = nullptr;
  std::optional<client::Steps> steps_;  // of the RPC plane
  std::vector<Memory> mirrors_;
  Memory tensors_{Memory::Kind::kGpu};
  std::vector<Copied> inputs_, outputs_;
  absl::Status copied_;  // the first copy that failed
  cudaGraphExec_t swap_in_ = nullptr, backup_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeGpuDevice(client::Cache* cache, Plane plane) {
  auto device = std::make_unique<GpuDevice>(cache, plane);
  if (absl::Status status = device->Start(); !status.ok()) return status;
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kvtier::demo
