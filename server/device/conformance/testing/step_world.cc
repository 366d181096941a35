#include "server/device/conformance/testing/step_world.h"

#include <algorithm>

#include "kernels/region_index.h"

namespace kvtier::testing {
namespace {

constexpr int64_t kLayerAlignment = 256;
constexpr int64_t kLayerGap = 512;

}  // namespace

std::vector<uint8_t> PatternRow(int64_t slot, int64_t layer, int32_t row_bytes) {
  std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes));
  for (int32_t i = 0; i < row_bytes; ++i) bytes[i] = PatternByte(slot, layer, i);
  return bytes;
}

std::vector<int64_t> StepWorld::Offsets(const std::vector<RowLayout>& layouts, int64_t rows) {
  std::vector<int64_t> offsets = {kLayerGap};
  for (const RowLayout& layout : layouts) {
    const int64_t end = offsets.back() + StorageBytes(layout, rows) + kLayerGap;
    offsets.push_back((end + kLayerAlignment - 1) / kLayerAlignment * kLayerAlignment);
  }
  return offsets;
}

StepWorld::StepWorld(DeviceBackend& backend, const std::string& device_uuid, DeviceStream& stream,
                     const GroupShape& shape, const std::vector<RowLayout>& layouts)
    : owner(backend, device_uuid, shape.hot_size),
      topk(backend, device_uuid, shape.top_k),
      hot_indices(backend, device_uuid, shape.top_k),
      miss_mask(backend, device_uuid, shape.top_k),
      valid_counts(backend, device_uuid, 1),
      plan_slots(backend, device_uuid, shape.top_k),
      plan_hot_rows(backend, device_uuid, shape.top_k),
      plan_counts(backend, device_uuid, 1),
      lru(backend, device_uuid, shape.hot_size),
      index(backend, device_uuid, RegionIndexLength(shape.hot_size)),
      stats(backend, device_uuid, 1),
      hot(backend, device_uuid, Offsets(layouts, shape.region_stride).back()),
      shape_(shape),
      host_offsets_(Offsets(layouts, shape.slot_count)),
      hot_offsets_(Offsets(layouts, shape.region_stride)),
      row_to_request_(backend, device_uuid, 1),
      newest_slot_(backend, device_uuid, 1),
      num_real_rows_(backend, device_uuid, 1),
      backup_slot_(backend, device_uuid, 1),
      host_(*SharedMemory::Create("host rows", host_offsets_.back())),
      registration_(*backend.RegisterHost(host_.data(), host_.size_bytes())) {
  std::fill_n(host_.data(), host_.size_bytes(), kCanary);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const LayerView layer = {.host = host_.data() + host_offsets_[i],
                             .hot = hot.data() + hot_offsets_[i],
                             .layout = layouts[i]};
    for (int32_t slot = 0; slot < shape.slot_count; ++slot) {
      const auto row = PatternRow(slot, static_cast<int64_t>(i), layouts[i].value_bytes);
      std::copy(row.begin(), row.end(), layer.host + ValueOffset(layouts[i], slot));
    }
    layers_.push_back(layer);
  }
  hot.Write(stream, std::vector<uint8_t>(static_cast<size_t>(hot_offsets_.back()), kCanary));
  row_to_request_.Write(stream, {0});
  num_real_rows_.Write(stream, {1});
  EXPECT_TRUE(stream.ResetRegion({.shape = shape_, .state = State(), .region = 0}).ok());
}

void StepWorld::Step(DeviceStream& stream, const std::vector<int32_t>& slots, int32_t newest_slot) {
  topk.Write(stream, slots);
  newest_slot_.Write(stream, {newest_slot});
  EXPECT_TRUE(stream
                  .SwapIn({.shape = shape_,
                           .state = State(),
                           .num_rows = 1,
                           .num_real_rows = num_real_rows_.data(),
                           .row_to_request = row_to_request_.data(),
                           .topk = topk.data(),
                           .newest_slot = newest_slot_.data(),
                           .hot_indices = hot_indices.data(),
                           .miss_mask = miss_mask.data(),
                           .valid_counts = valid_counts.data(),
                           .plan = {plan_slots.data(), plan_hot_rows.data(), plan_counts.data()},
                           .layers = layers_.data(),
                           .layer_count = static_cast<int32_t>(layers_.size()),
                           .stats = stats.data()})
                  .ok());
}

void StepWorld::BackUpNewest(DeviceStream& stream, int32_t slot) {
  backup_slot_.Write(stream, {slot});
  EXPECT_TRUE(stream
                  .Backup({.shape = shape_,
                           .state = State(),
                           .num_rows = 1,
                           .row_to_request = row_to_request_.data(),
                           .slots = backup_slot_.data(),
                           .layers = layers_.data(),
                           .layer_count = static_cast<int32_t>(layers_.size()),
                           .stats = stats.data()})
                  .ok());
}

void StepWorld::WriteHotRow(DeviceStream& stream, int32_t layer, int32_t row,
                            const std::vector<uint8_t>& bytes) const {
  hot.Write(stream, bytes, hot_row(layer, row) - hot.data());
}

std::vector<uint8_t> StepWorld::HotRow(const std::vector<uint8_t>& image, int32_t layer,
                                       int32_t row) const {
  const auto first = image.begin() + (hot_row(layer, row) - hot.data());
  return {first, first + layers_[layer].layout.value_bytes};
}

std::vector<uint8_t> StepWorld::HostRow(int32_t layer, int32_t slot) const {
  const uint8_t* first = layers_[layer].host + ValueOffset(layers_[layer].layout, slot);
  return {first, first + layers_[layer].layout.value_bytes};
}

int64_t StepWorld::Damaged(const uint8_t* image, int64_t bytes, const std::vector<int64_t>& offsets,
                           int32_t rows) const {
  std::vector<bool> of_a_row(static_cast<size_t>(bytes), false);
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (int32_t row = 0; row < rows; ++row) {
      const int64_t first = offsets[i] + ValueOffset(layers_[i].layout, row);
      std::fill_n(of_a_row.begin() + first, layers_[i].layout.value_bytes, true);
    }
  }
  int64_t damaged = 0;
  for (int64_t i = 0; i < bytes; ++i) {
    if (!of_a_row[i] && image[i] != kCanary) ++damaged;
  }
  return damaged;
}

int64_t StepWorld::DamagedCanaries(const std::vector<uint8_t>& hot_image) const {
  return Damaged(host_.data(), host_.size_bytes(), host_offsets_, shape_.slot_count) +
         Damaged(hot_image.data(), static_cast<int64_t>(hot_image.size()), hot_offsets_,
                 shape_.region_stride);
}

}  // namespace kvtier::testing
