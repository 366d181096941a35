#include "client/demo/worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/demo/device.h"

namespace kvtier::demo {
namespace {

constexpr int32_t kRowBytes = 656;
constexpr int32_t kLayersPerGroup = 2;
// One step of all lanes that are not done.
absl::Status Step(client::Cache* cache, Device* device, const std::vector<Lane*>& batch,
                  bool corrupt_row, Totals* totals) {
  const auto num_rows = static_cast<int32_t>(batch.size());
  const auto groups = static_cast<int32_t>(cache->view().groups.size());
  for (int32_t row = 0; row < num_rows; ++row) {
    if (absl::Status status = batch[row]->Prepare(cache, device, totals); !status.ok())
      return status;
  }
  // Only now: blocks may have moved while other lanes prepared.
  for (int32_t row = 0; row < num_rows; ++row) batch[row]->WriteInputs(device, row);
  if (corrupt_row) batch.front()->CorruptHostRow(cache);
  *device->view().num_real_rows = num_rows;

  if (absl::Status status = device->SwapIn(num_rows); !status.ok()) return status;
  totals->swap_ins += groups;
  for (int32_t g = 0; g < groups; ++g) {
    for (int32_t row = 0; row < num_rows; ++row) {
      absl::Status status = batch[row]->Check(*device, g, row, totals);
      if (!status.ok()) return status;
    }
  }
  if (absl::Status status = device->Backup(num_rows); !status.ok()) return status;
  for (Lane* lane : batch) {
    if (absl::Status status = lane->Finish(cache, totals); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

v1::CacheLayout DemoLayout(int32_t group_count, int32_t block_count, int32_t max_requests,
                           int32_t top_k, v1::EvictionPolicy eviction) {
  v1::CacheLayout layout;
  for (int32_t g = 0; g < group_count; ++g) {
    v1::LayerGroupLayout* group = layout.add_groups();
    group->set_top_k(top_k);
    for (int32_t l = 0; l < kLayersPerGroup; ++l) {
      v1::LayerLayout* layer = group->add_layers();
      layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
      layer->set_row_bytes(kRowBytes);
    }
  }
  layout.set_block_count(block_count);
  layout.set_max_requests(max_requests);
  layout.set_dtype_tag("fp8_dsa_demo");
  layout.set_eviction_policy(eviction);
  return layout;
}

absl::Status RunWorker(client::Cache* cache, const std::vector<client::Trace>& traces,
                       const WorkerOptions& options, Totals* totals,
                       const std::function<void(const Totals&)>& progress) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice(cache, options.plane);
  if (!device.ok()) return device.status();
  std::vector<Lane> lanes;
  for (size_t i = 0; i < traces.size(); ++i) {
    // Documents are cut at different places, so that requests come and go at different times.
    const auto requests = options.requests_per_document + static_cast<int32_t>(i % 2);
    lanes.emplace_back(absl::StrCat(options.name, ".", i), &traces[i], options.steps, requests);
  }
  for (bool first = true;; first = false) {
    std::vector<Lane*> batch;
    for (Lane& lane : lanes) {
      if (!lane.done()) batch.push_back(&lane);
    }
    if (batch.empty()) return absl::OkStatus();
    absl::Status status = Step(cache, device->get(), batch, first && options.corrupt_row, totals);
    if (!status.ok()) return status;
    progress(*totals);
  }
}

}  // namespace kvtier::demo
