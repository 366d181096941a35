#include "tests/gpu/cuda_implementation.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/workspace.h"
#include "kernels/region_index.h"
#include "tests/gpu/cuda_arena.h"

namespace kvtier::testing {
namespace {

// What a launch depends on besides the contents of arrays: addresses and sizes.
using Key = std::vector<int64_t>;

constexpr size_t kGraphsMax = 64;

class Runner {
 public:
  explicit Runner(const CudaOptions& options) : options_(options), stream_(MakeStream()) {}
  ~Runner() {
    ForgetGraphs();
    (void)cudaFree(workspace_);
    (void)cudaStreamDestroy(stream_);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void SwapIn(const SwapInParams& host) {
    const GroupShape& s = host.shape;
    SwapInParams p;
    std::vector<LayerView> layers;
    Mirrored(host.shape, host.num_rows, [&] {
      const int64_t rows = host.num_rows, positions = rows * s.top_k;
      p = host;
      p.state = State(s, host.state);
      p.tracking = Tracking(s, host.tracking);
      p.num_real_rows = In(host.num_real_rows, 1);
      p.row_to_request = In(host.row_to_request, rows);
      p.topk = In(host.topk, positions);
      p.newest_slot = In(host.newest_slot, rows);
      p.block_table = In(host.block_table, int64_t{s.region_count} * s.max_blocks);
      p.sequence_lengths = In(host.sequence_lengths, s.region_count);
      p.hot_indices = InOut(host.hot_indices, positions);
      p.miss_mask = InOut(host.miss_mask, positions);
      p.valid_counts = InOut(host.valid_counts, rows);
      p.plan = PlanOf(host.plan, rows, positions);
      layers = Layers(s, host.layers, host.layer_count);
      p.layers = layers.data();
      p.stats = InOut(host.stats, 1);
    });
    Execute("SwapIn", [&] { return cuda::SwapIn(p, workspace_, stream_, Launch()); });
  }

  void ReplayPlan(const ReplayPlanParams& host) {
    ReplayPlanParams p;
    std::vector<LayerView> layers;
    Mirrored(host.shape, host.num_rows, [&] {
      p = host;
      p.num_real_rows = In(host.num_real_rows, 1);
      p.plan = PlanOf(host.plan, host.num_rows, int64_t{host.num_rows} * host.shape.top_k);
      p.state = State(host.shape, host.state);
      p.row_to_request = In(host.row_to_request, host.num_rows);
      layers = Layers(host.shape, host.layers, host.layer_count);
      p.layers = layers.data();
      p.stats = InOut(host.stats, 1);
    });
    Execute("ReplayPlan", [&] { return cuda::ReplayPlan(p, stream_, Launch()); });
  }

  void Backup(const BackupParams& host) {
    BackupParams p;
    std::vector<LayerView> layers;
    std::vector<const uint8_t*> sources;
    Mirrored(host.shape, host.num_rows, [&] {
      p = host;
      p.state = State(host.shape, host.state);
      p.tracking = Tracking(host.shape, host.tracking);
      p.num_real_rows = In(host.num_real_rows, 1);
      p.row_to_request = In(host.row_to_request, host.num_rows);
      p.slots = In(host.slots, host.num_rows);
      p.source_rows = In(host.source_rows, host.num_rows);
      layers = Layers(host.shape, host.layers, host.layer_count);
      p.layers = layers.data();
      sources.clear();
      for (int32_t l = 0; l < host.layer_count && host.sources != nullptr; ++l) {
        const RowLayout& layout = host.source_layouts[l];
        sources.push_back(In(host.sources[l], StorageBytes(layout, host.source_row_count)));
        AddToKey(layout);
      }
      if (host.sources != nullptr) p.sources = sources.data();
      key_.push_back(host.source_row_count);
      p.stats = InOut(host.stats, 1);
    });
    Execute("Backup", [&] { return cuda::Backup(p, stream_); });
  }

  void Invalidate(const InvalidateParams& host) {
    InvalidateParams p;
    Mirrored(host.shape, 1, [&] {
      p = host;
      p.state = State(host.shape, host.state);
      p.stats = InOut(host.stats, 1);
      key_.insert(key_.end(), host.blocks, host.blocks + host.block_count);
    });
    Execute("Invalidate", [&] { return cuda::Invalidate(p, workspace_, stream_); });
  }

  void ResetRegion(const ResetRegionParams& host) {
    if (host.region < 0 || host.region >= host.shape.region_count) return;  // refused
    ResetRegionParams p;
    Mirrored(host.shape, 1, [&] {
      p = host;
      p.state = State(host.shape, host.state);
      key_.push_back(host.region);
    });
    Execute("ResetRegion", [&] { return cuda::ResetRegion(p, stream_); });
  }

 private:
  cuda::LaunchOptions Launch() const {
    return {.threads = options_.threads,
            .copying_blocks = options_.copying_blocks,
            .cluster = HasClusters() ? options_.cluster : std::min(options_.cluster, 1)};
  }

  static bool HasClusters() {
    int device = 0, major = 0;
    RequireCuda(cudaGetDevice(&device), "cudaGetDevice");
    RequireCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                "cudaDeviceGetAttribute");
    return major >= 9;
  }

  static cudaStream_t MakeStream() {
    cudaStream_t stream = nullptr;
    RequireCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }

  // Names all arrays of a call, again if the memory had to grow, and uploads them.
  void Mirrored(const GroupShape& shape, int32_t num_rows, const std::function<void()>& name_all) {
    ReserveWorkspace(shape, num_rows);
    do {
      key_.clear();
      device_.Begin();
      pinned_.Begin();
      name_all();
    } while (MustBeginAgain({&device_, &pinned_}));
    for (const int64_t size : {shape.top_k, shape.hot_size, shape.region_count, shape.region_stride,
                               shape.rows_per_request, shape.block_size, shape.slot_count,
                               shape.max_blocks, num_rows, static_cast<int32_t>(shape.policy)}) {
      key_.push_back(size);
    }
    device_.Upload();
    pinned_.Upload();
  }

  template <typename T>
  T* Note(T* pointer) {
    key_.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)));
    return pointer;
  }
  template <typename T>
  const T* In(const T* array, int64_t count) {
    return Note(device_.Mirror(array, count, /*writable=*/false));
  }
  template <typename T>
  T* InOut(T* array, int64_t count) {
    return Note(device_.Mirror(array, count, /*writable=*/true));
  }

  GroupState State(const GroupShape& s, const GroupState& host) {
    const int64_t hot_slots = int64_t{s.region_count} * s.hot_size;
    const int64_t index_words = int64_t{s.region_count} * RegionIndexLength(s.hot_size);
    return {InOut(host.owner, hot_slots),
            InOut(host.lru, hot_slots),
            InOut(host.index, index_words),
            InOut(host.score, hot_slots),
            InOut(host.directory, int64_t{kDirectoryWords} * s.slot_count),
            InOut(host.kept, int64_t{s.region_count} * s.rows_per_request)};
  }
  RowTracking Tracking(const GroupShape& s, const RowTracking& host) {
    CudaArena& arena = options_.generations_in_host_memory ? pinned_ : device_;
    return {Note(arena.Mirror(host.block_generation, s.slot_count / s.block_size, false)),
            Note(arena.Mirror(host.backed_generation, s.slot_count, true))};
  }
  Plan PlanOf(const Plan& host, int64_t rows, int64_t positions) {
    return {InOut(host.slots, positions), InOut(host.hot_rows, positions),
            InOut(host.counts, rows)};
  }
  std::vector<LayerView> Layers(const GroupShape& s, const LayerView* host, int32_t count) {
    std::vector<LayerView> layers;
    const int64_t hot_rows = int64_t{s.region_count} * s.region_stride;
    for (int32_t l = 0; l < count; ++l) {
      const RowLayout& layout = host[l].layout;
      layers.push_back(
          {Note(pinned_.Mirror(host[l].host, StorageBytes(layout, s.slot_count), true)),
           InOut(host[l].hot, StorageBytes(layout, hot_rows)), layout});
      AddToKey(layout);
    }
    key_.push_back(count);
    return layers;
  }
  void AddToKey(const RowLayout& layout) {
    for (const int64_t size : {static_cast<int64_t>(layout.format), int64_t{layout.value_bytes},
                               int64_t{layout.scale_bytes}, int64_t{layout.page_rows},
                               layout.row_stride, layout.page_bytes}) {
      key_.push_back(size);
    }
  }

  void ReserveWorkspace(const GroupShape& shape, int32_t num_rows) {
    const int64_t bytes = cuda::WorkspaceBytes(shape, num_rows);
    if (bytes > workspace_bytes_) {
      ForgetGraphs();
      RequireCuda(cudaFree(workspace_), "cudaFree");
      RequireCuda(cudaMalloc(&workspace_, static_cast<size_t>(bytes)), "cudaMalloc");
      RequireCuda(cudaMemsetAsync(workspace_, 0, static_cast<size_t>(bytes), stream_), "memset");
      workspace_bytes_ = bytes;
    }
    // Only the header may have a meaning from one call to the next.
    RequireCuda(cudaMemsetAsync(static_cast<uint8_t*>(workspace_) + cuda::kHeaderBytes, 0x5A,
                                static_cast<size_t>(bytes - cuda::kHeaderBytes), stream_),
                "memset");
  }

  void Execute(const char* call, const std::function<cudaError_t()>& launch) {
    if (options_.graph) {
      key_.insert(key_.begin(), static_cast<int64_t>(call[0]));
      RequireCuda(cudaGraphLaunch(GraphFor(call, launch), stream_), call);
    } else {
      RequireCuda(launch(), call);
    }
    device_.Download();
    pinned_.Download();
    std::vector<uint8_t> header(static_cast<size_t>(cuda::kHeaderBytes));
    RequireCuda(
        cudaMemcpyAsync(header.data(), workspace_, header.size(), cudaMemcpyDeviceToHost, stream_),
        call);
    RequireCuda(cudaStreamSynchronize(stream_), call);
    if (std::any_of(header.begin(), header.end(), [](uint8_t b) { return b != 0; })) {
      std::fprintf(stderr, "%s left a workspace header that isn't zero\n", call);
      std::abort();
    }
    RequireCuda(cudaPeekAtLastError(), call);
  }

  cudaGraphExec_t GraphFor(const char* call, const std::function<cudaError_t()>& launch) {
    if (const auto known = graphs_.find(key_); known != graphs_.end()) return known->second;
    if (graphs_.size() >= kGraphsMax) ForgetGraphs();
    cudaGraph_t graph = nullptr;
    RequireCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "begin of capture");
    RequireCuda(launch(), call);
    RequireCuda(cudaStreamEndCapture(stream_, &graph), "end of capture");
    cudaGraphExec_t executable = nullptr;
    RequireCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    RequireCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    graphs_[key_] = executable;
    return executable;
  }
  void ForgetGraphs() {
    for (const auto& [key, executable] : graphs_) (void)cudaGraphExecDestroy(executable);
    graphs_.clear();
  }

  const CudaOptions options_;
  const cudaStream_t stream_;
  CudaArena device_{/*on_device=*/true, stream_};
  CudaArena pinned_{/*on_device=*/false, stream_};
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  Key key_;  // of the call that is being made
  std::map<Key, cudaGraphExec_t> graphs_;
};

}  // namespace

std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

Implementation Cuda(const CudaOptions& options) {
  const auto runner = std::make_shared<std::unique_ptr<Runner>>();
  const auto get = [runner, options]() -> Runner& {
    if (*runner == nullptr) *runner = std::make_unique<Runner>(options);
    return **runner;
  };
  return {
      options.name,
      [get](const SwapInParams& params) { get().SwapIn(params); },
      [get](const ReplayPlanParams& params) { get().ReplayPlan(params); },
      [get](const BackupParams& params) { get().Backup(params); },
      [get](const InvalidateParams& params) { get().Invalidate(params); },
      [get](const ResetRegionParams& params) { get().ResetRegion(params); },
  };
}

std::vector<Implementation> CudaImplementations() {
  return {Cuda({.name = "CudaEager"}), Cuda({.name = "CudaGraph",
                                             .threads = 96,
                                             .copying_blocks = 3,
                                             .cluster = 2,
                                             .graph = true,
                                             .generations_in_host_memory = true})};
}

}  // namespace kvtier::testing
