// Where a worker of the demo decodes: a device and a plane, behind what the worker does with them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache.h"

namespace kvtier::demo {

enum class Plane { kInProcess, kRpc };

// Rows of one prefill, all layers of a group.
struct PrefillRows {
  int32_t group = 0;
  int32_t row_count = 0;
  std::vector<std::vector<uint8_t>> layers;  // [layer] StorageBytes(host layout, row_count)
  std::vector<int32_t> slots, regions;       // [row_count]
};

class Device {
 public:
  virtual ~Device() = default;

  // The cache's arrays as the host may use them: the cache's own on a CPU, copies on a GPU.
  virtual const client::CacheView& view() const = 0;

  // Leader and followers of every group, for rows [0, num_rows) of the step buffers and the newest
  // rows of their regions as they are in view(). Returns when the outputs and the hot rows are
  // there.
  virtual absl::Status SwapIn(int32_t num_rows) = 0;
  // The newest rows of the last SwapIn. Returns when they are in the host pool.
  virtual absl::Status Backup(int32_t num_rows) = 0;
  virtual absl::Status Prefill(const PrefillRows& rows) = 0;
};

// Group leaders are copied by the swap-in, followers by the plan's replay.
inline constexpr client::LayerSpan kLeader = {.first_layer = 0, .layer_count = 1};

// `cache` must outlive the device. Errors: those of client::Steps::Open and of the GPU.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(client::Cache* cache, Plane plane);

// For MakeDevice: where the cache is on a GPU. Its in-process plane replays CUDA graphs.
absl::StatusOr<std::unique_ptr<Device>> MakeGpuDevice(client::Cache* cache, Plane plane);

// BackupTensor's arguments from rows in memory of the cache's device.
absl::Status BackupPrefill(client::Cache* cache, const PrefillRows& rows,
                           std::span<const uint8_t* const> layers,
                           std::span<const int32_t> source_rows, std::span<const int32_t> slots,
                           std::span<const int32_t> regions, client::DeviceStreamRef stream);

}  // namespace kvtier::demo
