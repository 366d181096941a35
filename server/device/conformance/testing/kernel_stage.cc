#include "server/device/conformance/testing/kernel_stage.h"

#include <algorithm>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/region_index.h"

namespace kvtier::testing {
namespace {

constexpr int64_t kStageBytes = int64_t{4} << 20;
constexpr int64_t kAlignment = 256;
constexpr int64_t kGuardBytes = 64;  // at least, between arrays
constexpr uint8_t kGuard = 0xcd;

int64_t After(int64_t end_bytes) {
  return (end_bytes + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Callers may reuse such arrays as soon as a call has returned.
template <typename T>
void Scribble(std::vector<T>* elements) {
  std::fill(elements->begin(), elements->end(), T());
}

}  // namespace

KernelStage::KernelStage(DeviceBackend* backend, const std::string& device_uuid,
                         std::function<absl::Status(DeviceStream&)> drain)
    : drain_(std::move(drain)),
      stream_(*backend->CreateStream(device_uuid)),
      device_memory_(*backend->Allocate(device_uuid, "stage", kStageBytes)),
      host_memory_(*SharedMemory::Create("stage", kStageBytes)),
      registration_(*backend->RegisterHost(host_memory_.data(), kStageBytes)) {}

Implementation KernelStage::AsImplementation(const std::string& name) {
  Implementation implementation;
  implementation.name = name;
  implementation.swap_in = [this](const SwapInParams& params) { SwapIn(params); };
  implementation.replay_plan = [this](const ReplayPlanParams& params) { ReplayPlan(params); };
  implementation.backup = [this](const BackupParams& params) { Backup(params); };
  implementation.invalidate = [this](const InvalidateParams& params) { Invalidate(params); };
  implementation.reset_region = [this](const ResetRegionParams& params) { ResetRegion(params); };
  return implementation;
}

uint8_t* KernelStage::Place(Memory* memory, const void* array, int64_t size_bytes, bool writable,
                            uint8_t* base) {
  if (array == nullptr) return nullptr;
  // Cast away: what is const here is never carried back.
  auto* original = static_cast<uint8_t*>(const_cast<void*>(array));
  const int64_t offset = After(memory->end_bytes);
  memory->arrays.push_back({.original = original,
                            .size_bytes = size_bytes,
                            .offset_bytes = offset,
                            .writable = writable});
  memory->end_bytes = offset + size_bytes;
  EXPECT_LE(After(memory->end_bytes), kStageBytes) << "a larger stage is needed";
  return base + offset;
}

template <typename T>
T* KernelStage::Device(T* array, int64_t count) {
  return reinterpret_cast<T*>(Place(&device_, array, count * int64_t{sizeof(T)},
                                    !std::is_const_v<T>, device_memory_->data()));
}

template <typename T>
T* KernelStage::Host(T* array, int64_t count) {
  return reinterpret_cast<T*>(
      Place(&host_, array, count * int64_t{sizeof(T)}, !std::is_const_v<T>, host_memory_.data()));
}

GroupState KernelStage::Carry(const GroupShape& shape, const GroupState& state) {
  const int64_t count = int64_t{shape.region_count} * shape.hot_size;
  const int64_t index_words = int64_t{shape.region_count} * RegionIndexLength(shape.hot_size);
  return {.owner = Device(state.owner, count),
          .lru = Device(state.lru, count),
          .index = Device(state.index, index_words),
          .score = Device(state.score, count),
          .directory = Device(state.directory, int64_t{kDirectoryWords} * shape.slot_count),
          .kept = Device(state.kept, int64_t{shape.region_count} * shape.rows_per_request)};
}

RowTracking KernelStage::Carry(const GroupShape& shape, const RowTracking& tracking) {
  return {.block_generation = Host(tracking.block_generation, shape.slot_count / shape.block_size),
          .backed_generation = Host(tracking.backed_generation, shape.slot_count)};
}

Plan KernelStage::Carry(const GroupShape& shape, int32_t num_rows, const Plan& plan) {
  const int64_t count = int64_t{num_rows} * shape.top_k;
  return {.slots = Device(plan.slots, count),
          .hot_rows = Device(plan.hot_rows, count),
          .counts = Device(plan.counts, num_rows)};
}

std::vector<LayerView> KernelStage::Carry(const GroupShape& shape, const LayerView* layers,
                                          int32_t count) {
  std::vector<LayerView> carried(layers, layers + count);
  for (LayerView& layer : carried) {
    layer.host = Host(layer.host, StorageBytes(layer.layout, shape.slot_count));
    layer.hot = Device(
        layer.hot, StorageBytes(layer.layout, int64_t{shape.region_count} * shape.region_stride));
  }
  return carried;
}

void KernelStage::Run(const std::function<absl::Status()>& enqueue) {
  std::vector<uint8_t> image(static_cast<size_t>(After(device_.end_bytes)), kGuard);
  for (const Array& array : device_.arrays) {
    std::copy_n(array.original, array.size_bytes, image.data() + array.offset_bytes);
  }
  const auto host_bytes = static_cast<size_t>(After(host_.end_bytes));
  std::memset(host_memory_.data(), kGuard, host_bytes);
  for (const Array& array : host_.arrays) {
    std::copy_n(array.original, array.size_bytes, host_memory_.data() + array.offset_bytes);
  }
  const auto bytes = static_cast<int64_t>(image.size());
  EXPECT_TRUE(stream_->Write(device_memory_->data(), image.data(), bytes).ok());
  EXPECT_TRUE(enqueue().ok());
  EXPECT_TRUE(stream_->Read(image.data(), device_memory_->data(), bytes).ok());
  EXPECT_TRUE(drain_(*stream_).ok());
  CarryBack(&device_, image);
  CarryBack(&host_, {host_memory_.data(), host_memory_.data() + host_bytes});
}

void KernelStage::CarryBack(Memory* memory, const std::vector<uint8_t>& image) {
  int64_t end = 0;
  const auto expect_guard = [&](int64_t until) {
    EXPECT_TRUE(std::all_of(image.data() + end, image.data() + until, [](uint8_t byte) {
      return byte == kGuard;
    })) << "a kernel wrote outside its arrays";
  };
  for (const Array& array : memory->arrays) {
    expect_guard(array.offset_bytes);
    end = array.offset_bytes + array.size_bytes;
    if (array.writable) {
      std::copy_n(image.data() + array.offset_bytes, array.size_bytes, array.original);
    }
  }
  expect_guard(static_cast<int64_t>(image.size()));
  *memory = {};
}

void KernelStage::SwapIn(const SwapInParams& params) {
  const GroupShape& shape = params.shape;
  const int64_t entries = int64_t{params.num_rows} * shape.top_k;
  SwapInParams call = params;
  call.state = Carry(shape, params.state);
  call.tracking = Carry(shape, params.tracking);
  call.num_real_rows = Device(params.num_real_rows, 1);
  call.row_to_request = Device(params.row_to_request, params.num_rows);
  call.topk = Device(params.topk, entries);
  call.newest_slot = Device(params.newest_slot, params.num_rows);
  call.block_table = Device(params.block_table, int64_t{shape.region_count} * shape.max_blocks);
  call.sequence_lengths = Device(params.sequence_lengths, shape.region_count);
  call.hot_indices = Device(params.hot_indices, entries);
  call.miss_mask = Device(params.miss_mask, entries);
  call.valid_counts = Device(params.valid_counts, params.num_rows);
  call.plan = Carry(shape, params.num_rows, params.plan);
  call.stats = Device(params.stats, 1);
  std::vector<LayerView> layers = Carry(shape, params.layers, params.layer_count);
  call.layers = layers.data();
  Run([&] {
    const absl::Status status = stream_->SwapIn(call);
    Scribble(&layers);
    return status;
  });
}

void KernelStage::ReplayPlan(const ReplayPlanParams& params) {
  ReplayPlanParams call = params;
  call.num_real_rows = Device(params.num_real_rows, 1);
  call.plan = Carry(params.shape, params.num_rows, params.plan);
  call.state = Carry(params.shape, params.state);
  call.row_to_request = Device(params.row_to_request, params.num_rows);
  call.stats = Device(params.stats, 1);
  std::vector<LayerView> layers = Carry(params.shape, params.layers, params.layer_count);
  call.layers = layers.data();
  Run([&] {
    const absl::Status status = stream_->ReplayPlan(call);
    Scribble(&layers);
    return status;
  });
}

void KernelStage::Backup(const BackupParams& params) {
  BackupParams call = params;
  call.state = Carry(params.shape, params.state);
  call.tracking = Carry(params.shape, params.tracking);
  call.num_real_rows = Device(params.num_real_rows, 1);
  call.row_to_request = Device(params.row_to_request, params.num_rows);
  call.slots = Device(params.slots, params.num_rows);
  call.source_rows = Device(params.source_rows, params.num_rows);
  call.stats = Device(params.stats, 1);
  std::vector<LayerView> layers = Carry(params.shape, params.layers, params.layer_count);
  call.layers = layers.data();
  std::vector<const uint8_t*> sources;
  std::vector<RowLayout> source_layouts;
  for (int32_t i = 0; params.sources != nullptr && i < params.layer_count; ++i) {
    const RowLayout& layout = params.source_layouts[i];
    source_layouts.push_back(layout);
    sources.push_back(Device(params.sources[i], StorageBytes(layout, params.source_row_count)));
  }
  call.sources = sources.empty() ? nullptr : sources.data();
  call.source_layouts = source_layouts.empty() ? nullptr : source_layouts.data();
  Run([&] {
    const absl::Status status = stream_->Backup(call);
    Scribble(&layers);
    Scribble(&sources);
    Scribble(&source_layouts);
    return status;
  });
}

void KernelStage::Invalidate(const InvalidateParams& params) {
  InvalidateParams call = params;
  call.state = Carry(params.shape, params.state);
  call.stats = Device(params.stats, 1);
  std::vector<int32_t> blocks(params.blocks, params.blocks + params.block_count);
  call.blocks = blocks.data();  // host memory
  Run([&] {
    const absl::Status status = stream_->Invalidate(call);
    Scribble(&blocks);
    return status;
  });
}

void KernelStage::ResetRegion(const ResetRegionParams& params) {
  ResetRegionParams call = params;
  call.state = Carry(params.shape, params.state);
  Run([&] { return stream_->ResetRegion(call); });
}

}  // namespace kvtier::testing
