#include "client/data_plane/data_plane.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "client/data_plane/plane.h"
#include "kernels/cpu/executor.h"
#include "kernels/region_index.h"

#if defined(KVTIER_DATA_PLANE_CUDA)
#include "client/data_plane/cuda/cuda_device.h"
#endif

namespace data_plane = kvtier::data_plane;

struct kvtier_plane {
  explicit kvtier_plane(std::unique_ptr<data_plane::Device> device) : plane(std::move(device)) {}
  data_plane::Plane plane;
};

namespace {

static_assert(KVTIER_COUNTERS == kvtier::kCounterCount, "the header must say how many");

// As errno: what the last failure of a thread was.
struct LastError {
  std::string message, reason, metadata;
};
thread_local LastError last_error;

int32_t Return(data_plane::Error error) {
  if (error.ok()) return 0;
  last_error.message = std::move(error.message);
  last_error.reason = std::move(error.reason);
  last_error.metadata.clear();
  for (const auto& [key, value] : error.metadata) {
    last_error.metadata += key + "=" + value + "\n";
  }
  return static_cast<int32_t>(error.code);
}

const kvtier_inputs& OrNone(const kvtier_inputs* inputs) {
  static constexpr kvtier_inputs kNothing = {};
  return inputs != nullptr ? *inputs : kNothing;
}

int32_t ReturnMapping(data_plane::Error error, std::unique_ptr<data_plane::Mapping> mapping,
                      kvtier_plane* plane, void** address) {
  if (!error.ok()) return Return(std::move(error));
  *address = plane->plane.Keep(std::move(mapping));
  return 0;
}

data_plane::Error OpenDevice(const std::string& backend, const std::string& uuid, int32_t threads,
                             std::unique_ptr<data_plane::Device>* device) {
  if (threads < 1 || threads > kvtier::cpu::Executor::kThreadsMax) {
    return data_plane::ArgumentError("kernel_threads", std::to_string(threads),
                                     "in 1.." + std::to_string(kvtier::cpu::Executor::kThreadsMax));
  }
  if (backend == "cpu") {
    *device = data_plane::OpenCpu(threads);
    return {};
  }
#if defined(KVTIER_DATA_PLANE_CUDA)
  if (backend == "cuda") return data_plane::OpenCuda(uuid, device);
#endif
  return {.code = data_plane::Code::kUnimplemented,
          .reason = "NOT_IMPLEMENTED",
          .message = "device " + uuid + " is of the backend '" + backend +
                     "', for which this client library was not built",
          .metadata = {{"feature", "backend " + backend}}};
}

}  // namespace

int32_t kvtier_abi_version(void) { return KVTIER_ABI_VERSION; }

int32_t kvtier_has_cuda(void) {
#if defined(KVTIER_DATA_PLANE_CUDA)
  return 1;
#else
  return 0;
#endif
}

const char* kvtier_error_message(void) { return last_error.message.c_str(); }
const char* kvtier_error_reason(void) { return last_error.reason.c_str(); }
const char* kvtier_error_metadata(void) { return last_error.metadata.c_str(); }

int32_t kvtier_open(const char* backend, const char* uuid, int32_t threads, kvtier_plane** plane) {
  std::unique_ptr<data_plane::Device> device;
  data_plane::Error error = OpenDevice(backend, uuid, threads, &device);
  if (!error.ok()) return Return(std::move(error));
  *plane = std::make_unique<kvtier_plane>(std::move(device)).release();
  return 0;
}

void kvtier_close(kvtier_plane* plane) { delete plane; }

int32_t kvtier_device_ordinal(const kvtier_plane* plane) { return plane->plane.device().ordinal(); }

int32_t kvtier_map_file(kvtier_plane* plane, int32_t fd, int64_t offset_bytes, int64_t size_bytes,
                        int32_t flags, void** address) {
  const data_plane::FilePart part = {.fd = fd,
                                     .offset_bytes = offset_bytes,
                                     .size_bytes = size_bytes,
                                     .read_only = (flags & KVTIER_MAP_READ_ONLY) != 0,
                                     .unsealed = (flags & KVTIER_MAP_UNSEALED) != 0};
  std::unique_ptr<data_plane::Mapping> mapping;
  auto error = plane->plane.device().MapFile(part, &mapping);
  return ReturnMapping(std::move(error), std::move(mapping), plane, address);
}

int32_t kvtier_map_gpu_file(kvtier_plane* plane, int32_t fd, int64_t size_bytes, void** address) {
  std::unique_ptr<data_plane::Mapping> mapping;
  auto error = plane->plane.device().MapGpuFile(fd, size_bytes, &mapping);
  return ReturnMapping(std::move(error), std::move(mapping), plane, address);
}

int32_t kvtier_map_gpu_handle(kvtier_plane* plane, const void* handle, int64_t offset_bytes,
                              int64_t size_bytes, void** address) {
  std::unique_ptr<data_plane::Mapping> mapping;
  auto error = plane->plane.device().MapGpuHandle(handle, offset_bytes, size_bytes, &mapping);
  return ReturnMapping(std::move(error), std::move(mapping), plane, address);
}

int32_t kvtier_region_index_length(int32_t hot_size) { return kvtier::RegionIndexLength(hot_size); }
int32_t kvtier_stats_bytes(void) { return static_cast<int32_t>(sizeof(kvtier::StatsBlock)); }

int32_t kvtier_set_arrays(kvtier_plane* plane, const kvtier_arrays* arrays) {
  return Return(plane->plane.SetArrays(*arrays));
}

int32_t kvtier_swap_in(kvtier_plane* plane, int32_t group, int32_t num_rows, int32_t first_layer,
                       int32_t layer_count, int32_t use_slots, const kvtier_inputs* inputs,
                       void* stream) {
  return Return(plane->plane.SwapIn(group, num_rows, {first_layer, layer_count}, use_slots != 0,
                                    OrNone(inputs), stream));
}

int32_t kvtier_replay_plan(kvtier_plane* plane, int32_t group, int32_t num_rows,
                           int32_t first_layer, int32_t layer_count, const kvtier_inputs* inputs,
                           void* stream) {
  return Return(
      plane->plane.ReplayPlan(group, num_rows, {first_layer, layer_count}, OrNone(inputs), stream));
}

int32_t kvtier_backup_newest(kvtier_plane* plane, int32_t num_rows, const kvtier_inputs* inputs,
                             void* stream) {
  return Return(plane->plane.BackupNewest(num_rows, OrNone(inputs), stream));
}

int32_t kvtier_backup_rows(kvtier_plane* plane, int32_t group, const kvtier_layer* sources,
                           int32_t source_count, int32_t source_row_count,
                           const int32_t* source_rows, const int32_t* slots, const int32_t* regions,
                           int32_t row_count, void* stream) {
  return Return(plane->plane.BackupRows(group, {sources, source_count, source_row_count},
                                        {source_rows, slots, regions, row_count}, stream));
}

int32_t kvtier_mark_backed(kvtier_plane* plane, int32_t group, const int32_t* slots,
                           int32_t count) {
  return Return(plane->plane.MarkBacked(group, slots, count));
}

int32_t kvtier_counts(kvtier_plane* plane, int32_t group, int64_t* counts) {
  return Return(plane->plane.ReadCounts(group, counts));
}

int32_t kvtier_read(kvtier_plane* plane, void* destination, const void* source, int64_t bytes) {
  return Return(plane->plane.device().Read(destination, source, bytes));
}

int32_t kvtier_write(kvtier_plane* plane, void* destination, const void* source, int64_t bytes) {
  return Return(plane->plane.device().Write(destination, source, bytes));
}

int32_t kvtier_finish(kvtier_plane* plane) { return Return(plane->plane.device().Finish()); }

int32_t kvtier_signal(kvtier_plane* plane, int32_t* word, int32_t number, void* stream) {
  return Return(plane->plane.Signal(word, number, stream));
}

int32_t kvtier_wait(kvtier_plane* plane, const int32_t* word, int32_t number, void* stream) {
  return Return(plane->plane.Wait(word, number, stream));
}

void kvtier_release_wait(int32_t* word, int32_t number) {
  const std::atomic_ref<int32_t> shared(*word);
  const auto now = static_cast<uint32_t>(shared.load(std::memory_order_acquire));
  // Numbers are cyclic.
  if (static_cast<int32_t>(now - static_cast<uint32_t>(number)) >= 0) return;
  shared.store(number, std::memory_order_release);
}
