#include "tests/gpu/swap_in_workload.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/eviction.h"
#include "kernels/reference/reference.h"
#include "kernels/region_index.h"
#include "kernels/stats_block.h"
#include "kernels/testing/random_steps.h"
#include "tests/benchmark/report.h"
#include "tests/gpu/design_a.h"
#include "tests/gpu/graph_timer.h"
#include "tests/gpu/miss_trace.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kBlockSize = 64;

int64_t PoolBytes(const WorkloadSizes& sizes) {
  if (sizes.pool_bytes > 0) return sizes.pool_bytes;
  return int64_t{sizes.batch_max} * sizes.context * sizes.row_bytes * sizes.layers;
}

// What the `row`-th row of the pool holds.
void FillRow(int64_t row, uint64_t* words, int32_t count) {
  for (int32_t w = 0; w < count; ++w) {
    words[w] = static_cast<uint64_t>(row << 8 | w) * 0x9e3779b97f4a7c15u;
  }
}

}  // namespace

// Device memory; "warm" is the state after the warm-up.
struct SwapInWorkload::Buffers {
  Buffers(const WorkloadSizes& sizes, const GroupShape& shape)
      : hot(int64_t{sizes.batch_max} * shape.region_stride * sizes.row_bytes * sizes.layers),
        warm_hot(hot.count()),
        owner(int64_t{sizes.batch_max} * sizes.hot_size),
        warm_owner(owner.count()),
        lru(owner.count()),
        warm_lru(owner.count()),
        score(sizes.policy == EvictionPolicy::kAged ? owner.count() : 0),
        warm_score(score.count()),
        index(int64_t{sizes.batch_max} * RegionIndexLength(sizes.hot_size)),
        warm_index(index.count()),
        directory(int64_t{kDirectoryWords} * shape.slot_count),
        warm_directory(directory.count()),
        block_table(int64_t{sizes.batch_max} * shape.max_blocks),
        row_to_request(sizes.batch_max),
        topk(int64_t{kWarmUp + sizes.measured} * sizes.batch_max * sizes.top_k),
        hot_indices(topk.count()),
        plan_slots(sizes.layers > 1 ? int64_t{2} * sizes.batch_max * sizes.top_k : 0),
        plan_hot_rows(plan_slots.count()),
        plan_counts(2 * sizes.batch_max),
        stats(1),
        workspace(cuda::WorkspaceBytes(shape, sizes.batch_max)) {}

  DeviceArray<uint8_t> hot, warm_hot;
  DeviceArray<int32_t> owner, warm_owner;
  DeviceArray<int16_t> lru, warm_lru;
  DeviceArray<uint8_t> score, warm_score;  // kAged only
  DeviceArray<uint16_t> index, warm_index;
  DeviceArray<int32_t> directory, warm_directory;
  DeviceArray<int32_t> block_table, row_to_request;
  DeviceArray<int32_t> topk, hot_indices;          // [step, batch_max, top_k]
  DeviceArray<int32_t> plan_slots, plan_hot_rows;  // [2, batch_max, top_k], by a step's parity
  DeviceArray<int32_t> plan_counts;                // [2, batch_max]
  DeviceArray<StatsBlock> stats;
  DeviceArray<uint8_t> workspace;
};

SwapInWorkload::SwapInWorkload(const WorkloadSizes& sizes, const PinnedPool& pool,
                               cudaStream_t stream)
    : sizes_(sizes),
      pool_(pool),
      stream_(stream),
      slot_count_(static_cast<int32_t>(std::min(PoolBytes(sizes), pool.size_bytes()) /
                                       sizes.layers / sizes.row_bytes / kBlockSize * kBlockSize)),
      steps_(kWarmUp + sizes.measured) {
  RequireCuda(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "cudaStreamCreate");
  for (cudaEvent_t* event : {&resolved_, &replayed_[0], &replayed_[1]}) {
    RequireCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
  }
  DrawBlocks();
  FillUsedBlocks();
  device_ = std::make_unique<Buffers>(sizes_, Shape());
  device_->workspace.Clear(stream_);
  device_->block_table.Write(block_table_, stream_);
  std::vector<int32_t> rows(sizes_.batch_max);
  std::iota(rows.begin(), rows.end(), 0);
  device_->row_to_request.Write(rows, stream_);
}

SwapInWorkload::~SwapInWorkload() {
  for (cudaEvent_t event : {resolved_, replayed_[0], replayed_[1]}) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(beside_);
}

GroupShape SwapInWorkload::Shape() const {
  GroupShape shape;
  shape.top_k = sizes_.top_k;
  shape.hot_size = sizes_.hot_size;
  shape.region_count = sizes_.batch_max;
  shape.region_stride = RegionStride(sizes_.hot_size, 1);
  shape.block_size = kBlockSize;
  shape.slot_count = slot_count_;
  shape.max_blocks = sizes_.context / kBlockSize;
  shape.policy = sizes_.policy;
  return shape;
}

void SwapInWorkload::DrawBlocks() {
  const int32_t per_request = sizes_.context / kBlockSize;
  std::vector<int32_t> blocks(slot_count_ / kBlockSize);
  std::iota(blocks.begin(), blocks.end(), 0);
  Random random(7);
  size_t next = 0;
  for (int32_t request = 0; request < sizes_.batch_max; ++request) {
    if (sizes_.blocks_may_be_shared) next = 0;
    for (int32_t i = 0; i < per_request; ++i) {
      if (request > 0 && i < sizes_.common / kBlockSize) {
        block_table_.push_back(block_table_[i]);
        continue;
      }
      const auto left = static_cast<int32_t>(blocks.size() - next);
      std::swap(blocks.at(next), blocks[next + random.Below(left)]);
      block_table_.push_back(blocks[next++]);
    }
  }
}

void SwapInWorkload::FillUsedBlocks() {
  std::vector<int32_t> used = block_table_;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  ForEach(std::ssize(used) * sizes_.layers, [&](int64_t i) {
    const int64_t layer = i % sizes_.layers, block = used[i / sizes_.layers];
    for (int64_t offset = 0; offset < kBlockSize; ++offset) {
      const int64_t row = layer * slot_count_ + block * kBlockSize + offset;
      FillRow(row, reinterpret_cast<uint64_t*>(pool_.data() + row * sizes_.row_bytes),
              sizes_.row_bytes / 8);
    }
  });
}

void SwapInWorkload::Load(int32_t misses) {
  const int64_t batch = sizes_.batch_max, top_k = sizes_.top_k, hot_size = sizes_.hot_size;
  topk_.assign(steps_ * batch * top_k, kNone);
  expected_.assign(topk_.size(), kNone);
  expected_owner_.assign(batch * hot_size, kNone);
  expected_lru_.resize(batch * hot_size);
  expected_score_.assign(sizes_.policy == EvictionPolicy::kAged ? batch * hot_size : 0, kNoScore);
  misses_.assign(batch, 0);
  ForEach(batch, [&](int64_t request) {
    MissTrace trace(1000 + static_cast<uint64_t>(request), sizes_.top_k, sizes_.hot_size,
                    sizes_.context, misses);
    const int32_t region = 0;
    int32_t* const owner = &expected_owner_[request * hot_size];
    int16_t* const lru = &expected_lru_[request * hot_size];
    std::iota(lru, lru + hot_size, int16_t{0});
    StatsBlock stats;
    SwapInParams p;
    p.shape = Shape();
    p.shape.region_count = 1;
    p.state = {owner, lru};
    if (!expected_score_.empty()) p.state.score = &expected_score_[request * hot_size];
    p.num_rows = 1;
    p.row_to_request = &region;
    p.block_table = &block_table_[request * p.shape.max_blocks];
    p.stats = &stats;
    for (int64_t step = 0; step < steps_; ++step) {
      const int64_t at = (step * batch + request) * top_k;
      const std::vector<int32_t>& positions = trace.Next();
      std::copy(positions.begin(), positions.end(), topk_.begin() + at);
      p.topk = &topk_[at];
      p.hot_indices = &expected_[at];
      if (step == kWarmUp) stats = {};
      reference::SwapIn(p);
      trace.Note(p.hot_indices);
      const auto base = static_cast<int32_t>(request) * p.shape.region_stride;
      for (int64_t i = at; i < at + top_k; ++i) expected_[i] += base;
    }
    Counts counts;
    (void)ReadCounts(&stats, &counts);
    misses_[request] = counts[Counter::kMisses];
  });
  device_->topk.Write(topk_, stream_);
  StartEmpty();
  for (int32_t step = 0; step < kWarmUp; ++step) {
    const Kernel kernel = sizes_.common > 0 ? Kernel::kSharing : Kernel::kOurs;
    RequireCuda(Step(kernel, sizes_.batch_max, step, device_->hot_indices.data(), {}), "warm-up");
  }
  device_->warm_hot.CopyFrom(device_->hot, device_->hot.count(), stream_);
  device_->warm_owner.CopyFrom(device_->owner, device_->owner.count(), stream_);
  device_->warm_lru.CopyFrom(device_->lru, device_->lru.count(), stream_);
  device_->warm_score.CopyFrom(device_->score, device_->score.count(), stream_);
  device_->warm_index.CopyFrom(device_->index, device_->index.count(), stream_);
  device_->warm_directory.CopyFrom(device_->directory, device_->directory.count(), stream_);
  RequireCuda(cudaStreamSynchronize(stream_), "warm-up");
}

void SwapInWorkload::StartEmpty() {
  std::vector<int16_t> lru(static_cast<size_t>(device_->lru.count()));
  for (size_t i = 0; i < lru.size(); ++i) lru[i] = static_cast<int16_t>(i % sizes_.hot_size);
  device_->lru.Write(lru, stream_);
  device_->owner.Write(std::vector<int32_t>(lru.size(), kNone), stream_);
  device_->score.Clear(stream_);
  device_->index.Clear(stream_);
  device_->directory.Clear(stream_);
  device_->stats.Clear(stream_);
}

// Of the first `batch` requests; of all of them where more layers follow.
int64_t SwapInWorkload::HotBytes(int32_t batch) const {
  const int64_t all = device_->hot.count();
  return sizes_.layers == 1 ? all / sizes_.batch_max * batch : all;
}

void SwapInWorkload::Restore(int32_t batch) {
  const auto part = [&](int64_t count) { return count / sizes_.batch_max * batch; };
  device_->hot.CopyFrom(device_->warm_hot, HotBytes(batch), stream_);
  device_->owner.CopyFrom(device_->warm_owner, part(device_->owner.count()), stream_);
  device_->lru.CopyFrom(device_->warm_lru, part(device_->lru.count()), stream_);
  device_->score.CopyFrom(device_->warm_score, part(device_->score.count()), stream_);
  device_->index.CopyFrom(device_->warm_index, part(device_->index.count()), stream_);
  device_->directory.CopyFrom(device_->warm_directory, device_->directory.count(), stream_);
}

std::vector<LayerView> SwapInWorkload::Layers() const {
  const int64_t hot_bytes = device_->hot.count() / sizes_.layers;
  const int64_t host_bytes = int64_t{slot_count_} * sizes_.row_bytes;
  std::vector<LayerView> layers;
  for (int64_t l = 0; l < sizes_.layers; ++l) {
    layers.push_back({pool_.data() + l * host_bytes,
                      device_->hot.data() + l * hot_bytes,
                      {.value_bytes = sizes_.row_bytes, .row_stride = sizes_.row_bytes}});
  }
  return layers;
}

cudaError_t SwapInWorkload::Step(Kernel kernel, int32_t batch, int32_t step, int32_t* hot_indices,
                                 const cuda::LaunchOptions& launch) {
  const std::vector<LayerView> layers = Layers();
  SwapInParams p;
  p.shape = Shape();
  p.state = {device_->owner.data(), device_->lru.data()};
  if (device_->score.count() > 0) p.state.score = device_->score.data();
  if (RegionIndexLength(sizes_.hot_size) > 0) p.state.index = device_->index.data();
  p.num_rows = batch;
  p.row_to_request = device_->row_to_request.data();
  p.topk = device_->topk.data() + int64_t{step} * sizes_.batch_max * sizes_.top_k;
  p.block_table = device_->block_table.data();
  p.hot_indices = hot_indices;
  p.layers = layers.data();
  const bool is_one_call = kernel == Kernel::kOurs || kernel == Kernel::kSharing;
  p.layer_count = is_one_call ? sizes_.layers : 1;
  if (kernel == Kernel::kSharing || kernel == Kernel::kReplaySharing) {
    p.state.directory = device_->directory.data();
  }
  p.stats = device_->stats.data();
  if (kernel == Kernel::kDesignA) return cuda::DesignA(p, stream_);
  if (is_one_call) return cuda::SwapIn(p, device_->workspace.data(), stream_, launch);
  return StepByPlan(kernel, p, step);
}

// Two plans, by turns, so that followers may be a step behind their leader.
cudaError_t SwapInWorkload::StepByPlan(Kernel kernel, SwapInParams params, int32_t step) {
  const std::vector<LayerView> layers = Layers();
  const int64_t parity = step % 2, of_plan = parity * sizes_.batch_max * sizes_.top_k;
  params.plan = {device_->plan_slots.data() + of_plan, device_->plan_hot_rows.data() + of_plan,
                 device_->plan_counts.data() + parity * sizes_.batch_max};
  ReplayPlanParams replay;
  replay.shape = params.shape;
  replay.num_rows = params.num_rows;
  replay.plan = params.plan;
  replay.state = params.state;
  replay.row_to_request = params.row_to_request;
  replay.layers = layers.data() + 1;
  replay.layer_count = sizes_.layers - 1;
  replay.stats = params.stats;
  const bool is_beside = kernel == Kernel::kReplayBeside;
  // The plan of two steps before has been read, if that step is one of these.
  if (is_beside && step >= kWarmUp + 2) {
    RequireCuda(cudaStreamWaitEvent(stream_, replayed_[parity]), "wait");
  }
  const cudaError_t error = cuda::SwapIn(params, device_->workspace.data(), stream_);
  if (error != cudaSuccess || !is_beside) {
    return error != cudaSuccess ? error : cuda::ReplayPlan(replay, stream_);
  }
  RequireCuda(cudaEventRecord(resolved_, stream_), "record");
  RequireCuda(cudaStreamWaitEvent(beside_, resolved_), "wait");
  RequireCuda(cuda::ReplayPlan(replay, beside_), "ReplayPlan");
  RequireCuda(cudaEventRecord(replayed_[parity], beside_), "record");
  return step < steps_ - 1 ? cudaSuccess : cudaStreamWaitEvent(stream_, replayed_[parity]);
}

std::vector<Timing> SwapInWorkload::Time(int32_t batch, const std::vector<Kernel>& kernels,
                                         int32_t repeats, const cuda::LaunchOptions& launch) {
  std::vector<std::unique_ptr<GraphTimer>> timers;
  for (const Kernel kernel : kernels) {
    timers.push_back(
        std::make_unique<GraphTimer>(stream_, sizes_.measured, [&, kernel](int32_t step) {
          return Step(kernel, batch, kWarmUp + step, device_->hot_indices.data(), launch);
        }));
  }
  std::vector<Timing> timings(kernels.size());
  std::vector<std::vector<double>> of_replays(kernels.size()), of_each(kernels.size());
  for (int32_t repeat = 0; repeat < repeats; ++repeat) {
    for (size_t k = 0; k < kernels.size(); ++k) {
      Restore(batch);
      device_->stats.Clear(stream_);
      of_replays[k].push_back(timers[k]->Microseconds() / sizes_.measured);
      if (repeat == 0) {
        const StatsBlock stats = device_->stats.Read(1, stream_)[0];
        Counts counts;
        (void)ReadCounts(&stats, &counts);
        timings[k].bytes = static_cast<double>(counts[Counter::kBytesCopied]) / sizes_.measured;
        timings[k].shared = static_cast<double>(counts[Counter::kRowsShared]) / sizes_.measured;
        timings[k].wrong += CountWrongState(batch);
      }
      Restore(batch);
      for (const double us : timers[k]->MicrosecondsOfEach()) of_each[k].push_back(us);
    }
  }
  for (size_t k = 0; k < kernels.size(); ++k) {
    timings[k].us = Percentile(of_replays[k], 0.5);
    timings[k].us_best = Percentile(of_replays[k], 0);
    timings[k].us_each = Percentile(of_each[k], 0.5);
    timings[k].us_p99 = Percentile(of_each[k], 0.99);
    timings[k].wrong += CountWrongIndices(kernels[k], batch, launch);
  }
  return timings;
}

// After the last step.
int64_t SwapInWorkload::CountWrongState(int32_t batch) {
  const int64_t stride = RegionStride(sizes_.hot_size, 1);
  const auto row_bytes = static_cast<size_t>(sizes_.row_bytes);
  const auto hot = device_->hot.Read(HotBytes(batch), stream_);
  const auto owners = device_->owner.Read(int64_t{batch} * sizes_.hot_size, stream_);
  const auto lru = device_->lru.Read(std::ssize(owners), stream_);
  const auto scores =
      device_->score.Read(sizes_.policy == EvictionPolicy::kAged ? std::ssize(owners) : 0, stream_);
  std::vector<int64_t> wrong(batch);
  ForEach(batch, [&](int64_t request) {
    for (int64_t h = 0; h < sizes_.hot_size; ++h) {
      const int64_t i = request * sizes_.hot_size + h, slot = owners[i];
      wrong[request] += owners[i] != expected_owner_[i] || lru[i] != expected_lru_[i];
      wrong[request] += !scores.empty() && scores[i] != expected_score_[i];
      if (slot < 0 || slot >= slot_count_) continue;
      for (int64_t l = 0; l < sizes_.layers; ++l) {
        const size_t hot_row = (l * sizes_.batch_max + request) * stride + h;
        const size_t row = l * slot_count_ + slot;
        wrong[request] +=
            std::memcmp(&hot[hot_row * row_bytes], pool_.data() + row * row_bytes, row_bytes) != 0;
      }
    }
  });
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
}

// Of every measured step, which are enqueued once more for this.
int64_t SwapInWorkload::CountWrongIndices(Kernel kernel, int32_t batch,
                                          const cuda::LaunchOptions& launch) {
  const int64_t of_step = int64_t{sizes_.batch_max} * sizes_.top_k;
  const int64_t of_batch = int64_t{batch} * sizes_.top_k;
  Restore(batch);
  for (int32_t step = kWarmUp; step < steps_; ++step) {
    RequireCuda(Step(kernel, batch, step, device_->hot_indices.data() + step * of_step, launch),
                "a step");
  }
  const std::vector<int32_t> indices = device_->hot_indices.Read(steps_ * of_step, stream_);
  int64_t wrong = 0;
  for (int64_t at = kWarmUp * of_step; at < steps_ * of_step; at += of_step) {
    wrong +=
        !std::equal(indices.begin() + at, indices.begin() + at + of_batch, expected_.begin() + at);
  }
  return wrong;
}

double SwapInWorkload::RowsPerStep(int32_t batch) const {
  return std::accumulate(misses_.begin(), misses_.begin() + batch, 0.0) / sizes_.measured;
}

std::vector<int32_t> SwapInWorkload::RandomSlots(int32_t batch, int64_t count) const {
  Random random(11);
  std::vector<int32_t> slots;
  while (std::ssize(slots) < count) {
    const int32_t block = block_table_[random.Below(batch * Shape().max_blocks)];
    const int32_t layer = sizes_.layers > 1 ? random.Below(sizes_.layers) : 0;
    slots.push_back(layer * slot_count_ + block * kBlockSize + random.Below(kBlockSize));
  }
  return slots;
}

}  // namespace kvtier::testing
