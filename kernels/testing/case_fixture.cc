#include "kernels/testing/case_fixture.h"

#include <algorithm>
#include <numeric>

#include "kernels/testing/step_checker.h"
#include "tests/golden/worked_example.h"

namespace kvtier::testing {
namespace {

// The order is a permutation, and no slot is owned twice.
bool IsSound(Ints order, Ints owners) {
  std::sort(order.begin(), order.end());
  std::sort(owners.begin(), owners.end());
  const auto first = std::upper_bound(owners.begin(), owners.end(), kNone);
  return order == Range(0, static_cast<int32_t>(order.size())) &&
         std::adjacent_find(first, owners.end()) == owners.end();
}

}  // namespace

Group::Group(const Implementation& implementation, const GroupOptions& options)
    : GroupFixture(options), implementation_(implementation) {}

Ints Group::StepRows(const std::vector<Row>& rows) {
  num_real_rows = static_cast<int32_t>(rows.size());
  std::fill(topk.begin(), topk.end(), kNone);
  for (size_t r = 0; r < rows.size(); ++r) {
    row_to_request[r] = rows[r].region;
    newest_slot[r] = rows[r].newest;
    std::copy(rows[r].topk.begin(), rows[r].topk.end(),
              topk.begin() + static_cast<int64_t>(r) * shape().top_k);
  }
  PoisonOutputs();
  before_ = counts();
  const StepSnapshot before(*this);
  // A corrupt state is for the test to judge; sparse buffers are too large to look through.
  bool checked = !options().sparse;
  for (int32_t region = 0; region < shape().region_count && checked; ++region) {
    checked = IsSound(Lru(region), Owners(region));
  }
  implementation_.swap_in(SwapIn());
  if (checked) {
    EXPECT_EQ(CheckStep(before, *this), "");
  }
  return hot_indices;
}

Ints Group::StepRow(const Ints& topk, int32_t newest) {
  const Ints all = StepRows({{0, topk, newest}});
  return {all.begin(), all.begin() + shape().top_k};
}

void Group::WriteNewest(int32_t region, int32_t slot, uint8_t salt) {
  FillHotRow(region_start(region) + shape().hot_size, slot, salt);
}

void Group::BackupNewest(int32_t region, int32_t slot) {
  BackupParams p = Backup();
  p.num_rows = 1;
  p.row_to_request = &region;
  p.slots = &slot;
  before_ = counts();
  implementation_.backup(p);
}

void Group::BackupRow(int32_t region, int32_t slot, uint8_t salt) {
  const int32_t source_row = 0;
  std::vector<ByteBuffer> tensors;
  std::vector<const uint8_t*> sources;
  for (int32_t l = 0; l < layer_count(); ++l) {
    const RowLayout& layout = layouts()[l];
    tensors.emplace_back(StorageBytes(layout, 1), /*sparse=*/false);
    const std::string bytes = PatternRow(l, slot, salt);
    std::copy_n(bytes.begin(), layout.value_bytes, tensors[l].data() + ValueOffset(layout, 0));
    if (layout.format == RowFormat::kSplitPage) {
      std::copy_n(bytes.begin() + layout.value_bytes, layout.scale_bytes,
                  tensors[l].data() + ScaleOffset(layout, 0));
    }
  }
  for (const ByteBuffer& tensor : tensors) sources.push_back(tensor.data());
  BackupParams p = Backup();
  p.num_rows = 1;
  p.row_to_request = &region;
  p.slots = &slot;
  p.source_rows = &source_row;
  p.sources = sources.data();
  p.source_layouts = layouts().data();
  p.source_row_count = 1;
  before_ = counts();
  implementation_.backup(p);
}

void Group::AssignBlocks(const Ints& blocks) {
  if (options().tracking) {
    for (const int32_t block : blocks) ++block_generation[block];
  }
  before_ = counts();
  implementation_.invalidate(Invalidate(blocks));
}

void Group::EmptyRegion(int32_t region) { implementation_.reset_region(ResetRegion(region)); }

Ints Group::Copied() const {
  Ints slots;
  for (int32_t row = 0; row < num_rows(); ++row) {
    for (int32_t i = 0; i < plan_counts[row]; ++i) {
      const int32_t slot = plan_slots[int64_t{row} * shape().top_k + i];
      if (slot >= 0) slots.push_back(slot);
    }
  }
  return slots;
}

bool Group::Holds(int32_t index, int32_t slot) const {
  for (int32_t l = 0; l < layer_count(); ++l) {
    if (HotRow(l, index) != HostRow(l, slot)) return false;
  }
  return true;
}

bool Group::IsZero(int32_t hot_row) const {
  for (int32_t l = 0; l < layer_count(); ++l) {
    if (HotRow(l, hot_row) != std::string(RowBytes(layouts()[l]), '\0')) return false;
  }
  return true;
}

bool Group::IsUntouched(int32_t begin, int32_t end) const {
  for (int32_t l = 0; l < layer_count(); ++l) {
    const std::string canary(RowBytes(layouts()[l]), static_cast<char>(kCanary));
    for (int32_t row = begin; row < end; ++row) {
      if (HotRow(l, row) != canary) return false;
    }
  }
  return true;
}

GroupOptions SmallOptions() {
  GroupOptions options;
  options.shape = {.top_k = golden::kTopK,
                   .hot_size = golden::kHotSize,
                   .region_count = 1,
                   .block_size = golden::kBlockSize,
                   .slot_count = golden::kSlotCount};
  options.layouts = {Contiguous(golden::kRowBytes)};
  return options;
}

GroupOptions SmallAgedOptions() {
  GroupOptions options = SmallOptions();
  options.shape.policy = EvictionPolicy::kAged;
  return options;
}

Group KernelTest::WorkedExample(GroupOptions options) const {
  Group group = MakeGroup(options);
  for (int32_t h = 0; h < golden::kHotSize; ++h) {
    group.owner[h] = golden::kOwnerBefore[h];
    if (!group.score.empty()) group.score[h] = static_cast<uint8_t>(golden::kAgedScoreBefore[h]);
    group.lru[h] = static_cast<int16_t>(golden::kLruBefore[h]);
    if (group.owner[h] < group.shape().slot_count) group.FillHotRow(h, group.owner[h]);
  }
  return group;
}

std::string ImplementationName(const ::testing::TestParamInfo<Implementation>& info) {
  return info.param.name;
}

Ints Times(int32_t count, int32_t value) { return Ints(count, value); }

Ints Range(int32_t begin, int32_t end) {
  Ints range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

Ints Join(const std::vector<Ints>& parts) {
  Ints all;
  for (const Ints& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace kvtier::testing
