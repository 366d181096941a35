// An attached cache in this process: its mapped memory, its arrays, and the verbs on them. What the
// C interface of data_plane.h hands out. Internal to client/data_plane.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/data_plane/data_plane.h"
#include "client/data_plane/device.h"
#include "client/data_plane/error.h"
#include "kernels/params.h"

namespace kvtier::data_plane {

// Layers of a group, counted from the leader; a first layer of KVTIER_ALL_LAYERS is the default.
struct LayerSpan {
  int32_t first_layer = KVTIER_ALL_LAYERS;
  int32_t layer_count = 0;
};

// Tensors of the worker's, one a layer.
struct Sources {
  const kvtier_layer* layers = nullptr;
  int32_t layer_count = 0;
  int32_t row_count = 0;  // of each
};

// What is backed up: row rows[i] of each source to slot slots[i].
struct RowList {
  const int32_t* rows = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* regions = nullptr;  // may be null
  int32_t count = 0;
};

class Plane {
 public:
  explicit Plane(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  // Waits for what this process has enqueued, then unmaps.
  ~Plane();
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;

  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  // Keeps `mapping` until the end.
  void* Keep(std::unique_ptr<Mapping> mapping);

  Error SetArrays(const kvtier_arrays& arrays);

  Error SwapIn(int32_t group, int32_t num_rows, const LayerSpan& layers, bool use_slots,
               const kvtier_inputs& inputs, Stream stream);
  Error ReplayPlan(int32_t group, int32_t num_rows, const LayerSpan& layers,
                   const kvtier_inputs& inputs, Stream stream);
  Error BackupNewest(int32_t num_rows, const kvtier_inputs& inputs, Stream stream);
  Error BackupRows(int32_t group, const Sources& sources, const RowList& list, Stream stream);
  Error MarkBacked(int32_t group, const int32_t* slots, int32_t count);
  Error ReadCounts(int32_t group, int64_t* counts);

  Error Signal(int32_t* word, int32_t number, Stream stream);
  Error Wait(const int32_t* word, int32_t number, Stream stream);

 private:
  struct Group {
    GroupShape shape;
    GroupState state;
    RowTracking tracking;
    Plan plan;
    std::vector<LayerView> layers;
    kvtier_inputs step;  // the step buffers
    StatsBlock* stats = nullptr;
  };

  Error CheckGroup(int32_t group) const;
  Error CheckRows(int32_t num_rows) const;
  Error CheckSlots(int32_t group, const int32_t* slots, int32_t count, int32_t low) const;
  // `layers` of a call, or from `first_layer` to the end; inside the group.
  Error SpanOf(int32_t group, const LayerSpan& layers, int32_t first_layer, LayerSpan* span) const;

  const std::unique_ptr<Device> device_;            // outlives the mappings
  std::vector<std::unique_ptr<Mapping>> mappings_;  // before any verb
  std::vector<Group> groups_;
  int32_t step_rows_ = 0;
  const int32_t* block_table_ = nullptr;
  const int32_t* sequence_lengths_ = nullptr;

  std::mutex mutex_;  // held while a kernel runs, or is enqueued
};

}  // namespace kvtier::data_plane
