#include "client/demo/device.h"

#include <numeric>
#include <optional>
#include <utility>

#include "client/steps.h"

namespace kvtier::demo {
namespace {

// A cache on a CPU: its memory is the host's.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(client::Cache* cache) : cache_(cache) {}

  const client::CacheView& view() const override { return cache_->view(); }

  absl::Status Prefill(const PrefillRows& rows) override {
    std::vector<const uint8_t*> layers;
    for (const std::vector<uint8_t>& layer : rows.layers) layers.push_back(layer.data());
    std::vector<int32_t> source_rows(rows.row_count);
    std::iota(source_rows.begin(), source_rows.end(), 0);
    return BackupPrefill(cache_, rows, layers, source_rows, rows.slots, rows.regions, nullptr);
  }

 protected:
  client::Cache* cache() const { return cache_; }
  int32_t group_count() const { return static_cast<int32_t>(view().groups.size()); }

 private:
  client::Cache* const cache_;
};

class InProcessDevice final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;

  absl::Status SwapIn(int32_t num_rows) override {
    for (int32_t g = 0; g < group_count(); ++g) {
      absl::Status status = cache()->SwapIn(g, num_rows, {.layers = kLeader});
      if (status.ok()) status = cache()->ReplayPlan(g, num_rows);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Backup(int32_t num_rows) override { return cache()->BackupNewest(num_rows); }
};

class RpcDevice final : public CpuDevice {
 public:
  RpcDevice(client::Cache* cache, client::Steps steps)
      : CpuDevice(cache), steps_(std::move(steps)) {}

  absl::Status SwapIn(int32_t num_rows) override {
    for (int32_t g = 0; g < group_count(); ++g) {
      absl::Status status = steps_.SwapIn(g, num_rows, {.layers = kLeader}).status();
      if (status.ok()) {
        const bool last = g == group_count() - 1;
        status = steps_.ReplayPlan(g, num_rows, std::nullopt, /*wait=*/last).status();
      }
      if (!status.ok()) return status;
    }
    return TakeAnswers();
  }

  absl::Status Backup(int32_t num_rows) override {
    if (absl::Status status = steps_.Backup(num_rows, /*wait=*/true).status(); !status.ok()) {
      return status;
    }
    return TakeAnswers();
  }

 private:
  absl::Status TakeAnswers() {
    while (steps_.in_flight() > 0) {
      absl::StatusOr<client::StepResult> result = steps_.Next();
      if (!result.ok()) return result.status();
      if (!result->status.ok()) return result->status;
    }
    return absl::OkStatus();
  }

  client::Steps steps_;
};

}  // namespace

absl::Status BackupPrefill(client::Cache* cache, const PrefillRows& rows,
                           std::span<const uint8_t* const> layers,
                           std::span<const int32_t> source_rows, std::span<const int32_t> slots,
                           std::span<const int32_t> regions, client::DeviceStreamRef stream) {
  std::vector<client::TensorLayer> tensors;
  for (size_t l = 0; l < layers.size(); ++l) {
    tensors.push_back({layers[l], cache->view().groups[rows.group].layers[l].host.layout()});
  }
  return cache->BackupTensor(rows.group, tensors, rows.row_count, source_rows, slots, regions,
                             stream);
}

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(client::Cache* cache, Plane plane) {
#if defined(KVTIER_DEMO_CUDA)
  if (cache->device().backend() == "cuda") return MakeGpuDevice(cache, plane);
#endif
  if (plane == Plane::kInProcess) return std::make_unique<InProcessDevice>(cache);
  absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache);
  if (!steps.ok()) return steps.status();
  return std::make_unique<RpcDevice>(cache, *std::move(steps));
}

}  // namespace kvtier::demo
