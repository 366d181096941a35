// One request on one layer group, in memory that stays on the device from step to step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/params.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"

namespace kvtier::testing {

// An array in device memory.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(DeviceBackend& backend, const std::string& device_uuid, int64_t count)
      : memory_(*backend.Allocate(device_uuid, "array", count * int64_t{sizeof(T)})),
        count_(count) {}

  T* data() const { return reinterpret_cast<T*>(memory_->data()); }
  void Write(DeviceStream& stream, const std::vector<T>& elements, int64_t first = 0) const {
    EXPECT_TRUE(stream
                    .Write(reinterpret_cast<uint8_t*>(data() + first), elements.data(),
                           static_cast<int64_t>(elements.size() * sizeof(T)))
                    .ok());
  }
  // All elements; valid when the stream has been drained.
  std::vector<T> Read(DeviceStream& stream) const {
    std::vector<T> elements(static_cast<size_t>(count_));
    EXPECT_TRUE(stream
                    .Read(elements.data(), reinterpret_cast<const uint8_t*>(data()),
                          count_ * int64_t{sizeof(T)})
                    .ok());
    return elements;
  }

 private:
  const std::unique_ptr<DeviceMemory> memory_;
  const int64_t count_;
};

// Byte `byte` of row `slot` of layer `layer` in the host pool.
inline uint8_t PatternByte(int64_t slot, int64_t layer, int64_t byte) {
  return static_cast<uint8_t>((31 * slot + 7 * byte + 13 * layer) & 0xff);
}
std::vector<uint8_t> PatternRow(int64_t slot, int64_t layer, int32_t row_bytes);

// What was never written: between layers, and between the rows of a layer.
inline constexpr uint8_t kCanary = 0xcd;

class StepWorld {
 public:
  // One region, one row a step, contiguous rows. Host rows hold PatternRow; everything else of
  // the host pool and of the hot buffer holds kCanary. The region is empty.
  StepWorld(DeviceBackend& backend, const std::string& device_uuid, DeviceStream& stream,
            const GroupShape& shape, const std::vector<RowLayout>& layouts);

  // top_k slots.
  void Step(DeviceStream& stream, const std::vector<int32_t>& slots, int32_t newest_slot);
  // The newest row to `slot` of the host pool, on all layers.
  void BackUpNewest(DeviceStream& stream, int32_t slot);
  void WriteHotRow(DeviceStream& stream, int32_t layer, int32_t row,
                   const std::vector<uint8_t>& bytes) const;

  // Bytes of a row in an image of the hot buffer (hot.Read) or in the host pool.
  std::vector<uint8_t> HotRow(const std::vector<uint8_t>& image, int32_t layer, int32_t row) const;
  std::vector<uint8_t> HostRow(int32_t layer, int32_t slot) const;
  // How many bytes that belong to no row are not kCanary any more.
  int64_t DamagedCanaries(const std::vector<uint8_t>& hot_image) const;
  uint8_t* hot_row(int32_t layer, int32_t row) const {
    return layers_[layer].hot + ValueOffset(layers_[layer].layout, row);
  }

  const DeviceArray<int32_t> owner, topk, hot_indices, miss_mask, valid_counts;
  const DeviceArray<int32_t> plan_slots, plan_hot_rows, plan_counts;
  const DeviceArray<int16_t> lru;
  const DeviceArray<uint16_t> index;
  const DeviceArray<StatsBlock> stats;
  const DeviceArray<uint8_t> hot;

 private:
  // Where the layers start in the host pool and in the hot buffer.
  static std::vector<int64_t> Offsets(const std::vector<RowLayout>& layouts, int64_t rows);
  GroupState State() const {
    return {.owner = owner.data(), .lru = lru.data(), .index = index.data()};
  }
  int64_t Damaged(const uint8_t* image, int64_t bytes, const std::vector<int64_t>& offsets,
                  int32_t rows) const;

  const GroupShape shape_;
  const std::vector<int64_t> host_offsets_, hot_offsets_;  // one more than layers: the end
  const DeviceArray<int32_t> row_to_request_, newest_slot_, num_real_rows_, backup_slot_;
  const SharedMemory host_;
  const std::unique_ptr<HostRegistration> registration_;
  std::vector<LayerView> layers_;
};

}  // namespace kvtier::testing
