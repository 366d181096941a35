#include "server/session/inline_step.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"
#include "server/session/cache.h"

namespace kvtier {
namespace {

std::vector<absl::string_view> Views(const std::vector<std::string>& ids) {
  return std::vector<absl::string_view>(ids.begin(), ids.end());
}

// In memory. Short names lie in the string itself.
int64_t BytesOf(const std::string& name) {
  const auto bytes = static_cast<int64_t>(name.size());
  return static_cast<int64_t>(sizeof(name)) + (name.size() < sizeof(name) / 2 ? 0 : bytes + 1);
}

// int32 arrays one after another, as they go to scratch memory in one write.
class ArrayPacker {
 public:
  // Returns where `values` start, in bytes.
  int64_t Add(const std::vector<int32_t>& values) {
    const int64_t offset = size_bytes();
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
    bytes_.resize(offset + AlignedBytes(static_cast<int64_t>(values.size())));
    std::memcpy(bytes_.data() + offset, values.data(), bytes);
    return offset;
  }
  const uint8_t* data() const { return bytes_.data(); }
  int64_t size_bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Bytes that an array of `count` values takes.
  static int64_t AlignedBytes(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(int32_t));
    return (bytes + kArrayAlignmentBytes - 1) / kArrayAlignmentBytes * kArrayAlignmentBytes;
  }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<InlineSwapIn>> InlineSwapIn::Create(
    Attachment& attachment, int32_t group, const std::vector<InlineSwapInRow>& rows) {
  auto step = std::make_shared<InlineSwapIn>();
  int64_t bytes = 0;
  for (const InlineSwapInRow& row : rows) bytes += BytesOf(row.request_id);
  KVTIER_ASSIGN_OR_RETURN(step->place_, attachment.inline_bytes().Take(bytes));
  for (const InlineSwapInRow& row : rows) step->request_ids_.push_back(row.request_id);
  // Once more under the enqueue lock; here, so that a mistake costs no memory.
  KVTIER_RETURN_IF_ERROR(attachment.requests().RegionsOf(Views(step->request_ids_)).status());
  step->group_ = group;
  step->num_rows_ = static_cast<int32_t>(rows.size());
  step->top_k_ = attachment.cache()->layout().groups[group].top_k;
  if (rows.empty()) return step;
  step->geometry_ = InlineStepGeometryOf(step->num_rows_, step->top_k_);
  step->input_.resize(step->geometry_.input_bytes);
  int32_t* const newest =
      reinterpret_cast<int32_t*>(step->input_.data() + step->geometry_.newest_slot.offset_bytes);
  int32_t* topk =
      reinterpret_cast<int32_t*>(step->input_.data() + step->geometry_.topk.offset_bytes);
  for (int32_t i = 0; i < step->num_rows_; ++i, topk += step->top_k_) {
    newest[i] = rows[i].newest_slot;
    std::fill(std::copy(rows[i].topk.begin(), rows[i].topk.end(), topk), topk + step->top_k_,
              kNone);
  }
  step->output_.resize(step->geometry_.total_bytes - step->geometry_.output_offset_bytes);
  KVTIER_ASSIGN_OR_RETURN(step->scratch_, attachment.Scratch(step->geometry_.total_bytes));
  return step;
}

absl::Status InlineSwapIn::Enqueue(DeviceStream* stream, const HotTier& tier,
                                   const RequestTable& requests, LayerSpan layers, bool use_slots) {
  KVTIER_ASSIGN_OR_RETURN(const std::vector<int32_t> regions,
                          requests.RegionsOf(Views(request_ids_)));
  if (num_rows_ == 0) return absl::OkStatus();
  std::copy(regions.begin(), regions.end(),
            reinterpret_cast<int32_t*>(input_.data() + geometry_.row_to_request.offset_bytes));
  uint8_t* const base = scratch_->data();
  KVTIER_RETURN_IF_ERROR(stream->Write(base, input_.data(), geometry_.input_bytes));
  KVTIER_RETURN_IF_ERROR(stream->SwapIn(
      tier.MakeSwapIn(group_, InlineStepArrays(geometry_, num_rows_, base), layers, use_slots)));
  return stream->Read(output_.data(), base + geometry_.output_offset_bytes,
                      static_cast<int64_t>(output_.size()));
}

std::vector<SwapInRowOutput> InlineSwapIn::Outputs() const {
  std::vector<SwapInRowOutput> rows(num_rows_);
  const auto at = [this](const ArrayExtent& extent) {
    return reinterpret_cast<const int32_t*>(output_.data() + extent.offset_bytes -
                                            geometry_.output_offset_bytes);
  };
  for (int32_t i = 0; i < num_rows_; ++i) {
    const int64_t first = int64_t{i} * top_k_;
    const auto slice = [&](const ArrayExtent& extent, int32_t count) {
      return std::vector<int32_t>(at(extent) + first, at(extent) + first + count);
    };
    const int32_t plan_count = std::clamp(at(geometry_.plan_counts)[i], 0, top_k_);
    rows[i].hot_indices = slice(geometry_.hot_indices, top_k_);
    rows[i].miss_mask = slice(geometry_.miss_mask, top_k_);
    rows[i].valid_count = at(geometry_.valid_counts)[i];
    rows[i].plan_slots = slice(geometry_.plan_slots, plan_count);
    rows[i].plan_hot_rows = slice(geometry_.plan_hot_rows, plan_count);
  }
  return rows;
}

absl::StatusOr<std::shared_ptr<InlineBackup>> InlineBackup::Create(
    Attachment& attachment, const std::vector<InlineBackupRow>& rows) {
  auto step = std::make_shared<InlineBackup>();
  int64_t bytes = 0;
  for (const InlineBackupRow& row : rows) {
    bytes += static_cast<int64_t>(sizeof(row) - sizeof(row.request_id)) + BytesOf(row.request_id);
  }
  KVTIER_ASSIGN_OR_RETURN(step->place_, attachment.inline_bytes().Take(bytes));
  step->rows_ = rows;
  KVTIER_RETURN_IF_ERROR(attachment.requests().RegionsOf(step->Ids()).status());
  if (rows.empty()) return step;
  step->has_source_rows_ = std::any_of(rows.begin(), rows.end(), [](const InlineBackupRow& row) {
    return row.source_hot_row.has_value();
  });
  // Requests and slots, then sources by group.
  const size_t groups = attachment.cache()->layout().groups.size();
  const int64_t arrays = 2 + static_cast<int64_t>(step->has_source_rows_ ? groups : 0);
  KVTIER_ASSIGN_OR_RETURN(
      step->scratch_,
      attachment.Scratch(arrays * ArrayPacker::AlignedBytes(static_cast<int64_t>(rows.size()))));
  return step;
}

absl::Status InlineBackup::Enqueue(DeviceStream* stream, const HotTier& tier,
                                   const RequestTable& requests) {
  KVTIER_ASSIGN_OR_RETURN(const std::vector<int32_t> regions, requests.RegionsOf(Ids()));
  if (rows_.empty()) return absl::OkStatus();
  std::vector<int32_t> slots;
  for (const InlineBackupRow& row : rows_) slots.push_back(row.slot);
  uint8_t* const base = scratch_->data();
  const auto at = [base](int64_t offset) {
    return reinterpret_cast<const int32_t*>(base + offset);
  };
  ArrayPacker packer;
  BackupArrays arrays;
  arrays.num_rows = static_cast<int32_t>(rows_.size());
  arrays.row_to_request = at(packer.Add(regions));
  arrays.slots = at(packer.Add(slots));
  std::vector<const int32_t*> source_rows(tier.group_count(), nullptr);
  for (int g = 0; g < tier.group_count() && has_source_rows_; ++g) {
    source_rows[g] = at(packer.Add(SourceRows(tier.shape(g), regions)));
  }
  KVTIER_RETURN_IF_ERROR(stream->Write(base, packer.data(), packer.size_bytes()));
  for (int g = 0; g < tier.group_count(); ++g) {
    arrays.source_rows = source_rows[g];
    KVTIER_RETURN_IF_ERROR(stream->Backup(tier.MakeBackup(g, arrays)));
  }
  return absl::OkStatus();
}

std::vector<absl::string_view> InlineBackup::Ids() const {
  std::vector<absl::string_view> ids;
  for (const InlineBackupRow& row : rows_) ids.push_back(row.request_id);
  return ids;
}

std::vector<int32_t> InlineBackup::SourceRows(const GroupShape& shape,
                                              const std::vector<int32_t>& regions) const {
  std::vector<int32_t> sources;
  absl::flat_hash_map<int32_t, int32_t> newest_of;  // by region, met so far
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].source_hot_row.has_value()) {
      sources.push_back(*rows_[i].source_hot_row);
    } else {
      const int32_t rank = newest_of[regions[i]]++;
      sources.push_back(regions[i] * shape.region_stride + shape.hot_size + rank);
    }
  }
  return sources;
}

}  // namespace kvtier
