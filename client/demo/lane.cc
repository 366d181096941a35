#include "client/demo/lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/demo/content.h"

namespace kvtier::demo {
namespace {

// Tokens that a prefill backs up at a time.
constexpr int32_t kPrefillChunk = 1024;
// Steps between two replacements of a request's last block.
constexpr int32_t kReplaceInterval = 23;

// Layers through all groups, as content.h counts them.
int32_t LayerNumber(const client::CacheView& view, int32_t group, int32_t layer) {
  int32_t number = layer;
  for (int32_t g = 0; g < group; ++g) number += static_cast<int32_t>(view.groups[g].layers.size());
  return number;
}

}  // namespace

Lane::Lane(std::string name, const client::Trace* trace, int32_t step_count, int32_t request_count)
    : name_(std::move(name)),
      trace_(trace),
      step_count_(std::min(step_count, trace->step_count)),
      request_count_(request_count) {}

uint64_t Lane::SeedOf(const client::CacheView& view, int32_t group, int32_t layer,
                      int32_t position) const {
  const int32_t block_size = view.groups[group].shape.block_size;
  return RowSeed(tenant_, position, LayerNumber(view, group, layer),
                 generations_[position / block_size]);
}

absl::Status Lane::Prepare(client::Cache* cache, Device* device, Totals* totals) {
  if (!request_.has_value()) {
    if (absl::Status status = Begin(cache, device, totals); !status.ok()) return status;
  }
  const int32_t own = trace_->own_position(step_);
  if (request_->SlotOf(own) < 0) {
    if (absl::Status status = AddBlocks(1); !status.ok()) return status;
  } else if (step_ % kReplaceInterval == kReplaceInterval - 1) {
    if (absl::Status status = ReplaceLastBlock(device, totals); !status.ok()) return status;
  }
  request_->SetSequenceLength(own + 1);
  return absl::OkStatus();
}

absl::Status Lane::Begin(client::Cache* cache, Device* device, Totals* totals) {
  const int32_t block_size = cache->layout().block_size();
  request_end_ = step_count_ * (request_number_ + 1) / request_count_;
  const std::string id = absl::StrCat(name_, ".", request_number_++);
  // The prompt and everything that will be decoded, so that no step can lack a block.
  const int32_t blocks_in_all = trace_->own_position(request_end_ - 1) / block_size + 1;
  absl::StatusOr<client::Request> request = cache->Admit(id, blocks_in_all);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  tenant_ = TenantOf(cache->name(), id);
  generations_.clear();
  models_.clear();
  for (const client::GroupView& group : cache->view().groups) {
    models_.emplace_back(group.shape.hot_size, group.shape.policy);
  }
  const int32_t prompt = trace_->own_position(step_);
  if (absl::Status status = AddBlocks((prompt + block_size - 1) / block_size); !status.ok()) {
    return status;
  }
  return Prefill(device, 0, prompt, totals);
}

absl::Status Lane::AddBlocks(int32_t count) {
  absl::StatusOr<client::AssignedBlocks> blocks = request_->AssignBlocks(count);
  if (!blocks.ok()) return blocks.status();
  generations_.insert(generations_.end(), blocks->generations.begin(), blocks->generations.end());
  return absl::OkStatus();
}

absl::Status Lane::ReplaceLastBlock(Device* device, Totals* totals) {
  const int32_t block_size = device->view().groups.front().shape.block_size;
  const auto last = static_cast<int32_t>(generations_.size()) - 1;
  const int32_t block = request_->block_table()[last];
  absl::StatusOr<int32_t> freed = request_->FreeBlocks({&block, 1});
  if (!freed.ok()) return freed.status();
  generations_.pop_back();
  for (EvictionModel& model : models_) model.Forget(block, block_size);
  if (absl::Status status = AddBlocks(1); !status.ok()) return status;
  return Prefill(device, last * block_size, trace_->own_position(step_), totals);
}

absl::Status Lane::Prefill(Device* device, int32_t first, int32_t end, Totals* totals) {
  const client::CacheView& view = device->view();
  for (int32_t g = 0; g < static_cast<int32_t>(view.groups.size()); ++g) {
    const client::GroupView& group = view.groups[g];
    for (int32_t begin = first; begin < end; begin += kPrefillChunk) {
      const int32_t count = std::min(kPrefillChunk, end - begin);
      PrefillRows rows = {.group = g, .row_count = count};
      rows.regions.assign(count, request_->region());
      for (int32_t i = 0; i < count; ++i) rows.slots.push_back(request_->SlotOf(begin + i));
      for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
        const RowLayout& layout = group.layers[l].host.layout();
        rows.layers.emplace_back(StorageBytes(layout, count));
        const client::Rows tensor(rows.layers.back().data(), layout, count);
        for (int32_t i = 0; i < count; ++i) FillRow(SeedOf(view, g, l, begin + i), tensor.value(i));
      }
      if (absl::Status status = device->Prefill(rows); !status.ok()) return status;
      totals->backed_up_rows += count;
    }
  }
  return absl::OkStatus();
}

void Lane::WriteInputs(Device* device, int32_t row) {
  const client::CacheView& view = device->view();
  const int32_t own = trace_->own_position(step_);
  view.row_to_request[row] = request_->region();
  view.newest_slot[row] = request_->SlotOf(own);
  for (int32_t g = 0; g < static_cast<int32_t>(view.groups.size()); ++g) {
    const client::GroupView& group = view.groups[g];
    const std::span<const int32_t> positions = trace_->positions_of(g, step_);
    std::copy(positions.begin(), positions.end(),
              group.topk.begin() + int64_t{row} * group.shape.top_k);
    for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
      FillRow(SeedOf(view, g, l, own),
              group.layers[l].hot.value(group.newest_hot_row(request_->region())));
    }
  }
}

absl::Status Lane::Check(const Device& device, int32_t group_index, int32_t row, Totals* totals) {
  const client::CacheView& view = device.view();
  const client::GroupView& group = view.groups[group_index];
  const std::span<const int32_t> positions = trace_->positions_of(group_index, step_);
  const auto hot_rows = group.hot_indices.subspan(int64_t{row} * group.shape.top_k);
  for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint64_t seed = SeedOf(view, group_index, l, positions[i]);
      const std::span<const uint8_t> bytes = group.layers[l].hot.value(hot_rows[i]);
      ++totals->rows_checked;
      if (bytes.empty() || !RowIs(seed, bytes)) ++totals->mismatched_rows;
    }
  }
  std::vector<int32_t> slots;
  for (const int32_t position : positions) slots.push_back(request_->SlotOf(position));
  const int32_t newest = request_->SlotOf(trace_->own_position(step_));
  const StepCounts counts = models_[group_index].Step(slots, newest);
  models_[group_index].Backup(newest);  // which follows
  totals->hits += counts.hits;
  totals->misses += counts.misses;
  totals->newest += counts.newest;
  totals->kept += counts.kept;
  if (group.plan_counts[row] == counts.misses) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name_, ", step ", step_, ", group ", group_index,
                                          ": the plan has ", group.plan_counts[row],
                                          " misses, the model counts ", counts.misses));
}

absl::Status Lane::Finish(client::Cache* cache, Totals* totals) {
  ++totals->decode_steps;
  totals->backed_up_rows += static_cast<int64_t>(cache->view().groups.size());
  if (++step_ < request_end_) return absl::OkStatus();
  const absl::Status status = request_->Release().status();
  request_.reset();
  return status;
}

void Lane::CorruptHostRow(client::Cache* cache) {
  const client::GroupView& group = cache->view().groups.front();
  const int32_t own = trace_->own_position(step_);
  for (const int32_t position : trace_->positions_of(0, step_)) {
    if (position == own) continue;
    group.layers.back().host.value(request_->SlotOf(position))[0] ^= 1;
    return;
  }
}

}  // namespace kvtier::demo
