#include "kernels/testing/group_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/region_index.h"
#include "kernels/stats_block.h"

namespace kvtier::testing {
namespace {

std::string ReadRow(const uint8_t* base, const RowLayout& layout, int32_t row) {
  const char* bytes = reinterpret_cast<const char*>(base);
  std::string out(bytes + ValueOffset(layout, row), layout.value_bytes);
  if (layout.format == RowFormat::kSplitPage) {
    out.append(bytes + ScaleOffset(layout, row), layout.scale_bytes);
  }
  return out;
}

void WriteRow(uint8_t* base, const RowLayout& layout, int32_t row, const std::string& bytes) {
  std::memcpy(base + ValueOffset(layout, row), bytes.data(), layout.value_bytes);
  if (layout.format != RowFormat::kSplitPage) return;
  std::memcpy(base + ScaleOffset(layout, row), bytes.data() + layout.value_bytes,
              layout.scale_bytes);
}

template <typename T>
std::string FirstDifference(const char* name, const T* a, const T* b, int64_t count) {
  const T* at = std::mismatch(a, a + count, b).first;
  if (at == a + count) return "";
  const int64_t i = at - a;
  return std::string(name) + "[" + std::to_string(i) + "]: " + std::to_string(+a[i]) + " and " +
         std::to_string(+b[i]);
}

template <typename T>
std::string FirstDifference(const char* name, const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return std::string(name) + ": different sizes";
  return FirstDifference(name, a.data(), b.data(), static_cast<int64_t>(a.size()));
}

// Plans are compared as far as they go: what lies behind the counts has no meaning.
std::string PlanDifference(const GroupFixture& a, const GroupFixture& b) {
  std::string text = FirstDifference("plan.counts", a.plan_counts, b.plan_counts);
  for (int32_t row = 0; row < a.num_rows() && text.empty(); ++row) {
    const int64_t start = int64_t{row} * a.shape().top_k;
    const int32_t count = std::clamp(a.plan_counts[row], 0, a.shape().top_k);
    text = FirstDifference("plan.slots", a.plan_slots.data() + start, b.plan_slots.data() + start,
                           count);
    if (text.empty()) {
      text = FirstDifference("plan.hot_rows", a.plan_hot_rows.data() + start,
                             b.plan_hot_rows.data() + start, count);
    }
    if (!text.empty()) text += " (of row " + std::to_string(row) + ")";
  }
  return text;
}

std::string BytesDifference(const char* name, const std::vector<ByteBuffer>& a,
                            const std::vector<ByteBuffer>& b) {
  for (size_t l = 0; l < a.size(); ++l) {
    if (a[l].sparse() || std::memcmp(a[l].data(), b[l].data(), a[l].size()) == 0) continue;
    return "layer " + std::to_string(l) + " " +
           FirstDifference(name, a[l].data(), b[l].data(), a[l].size());
  }
  return "";
}

}  // namespace

RowLayout Contiguous(int32_t row_bytes, int64_t row_stride) {
  return {.format = RowFormat::kContiguous,
          .value_bytes = row_bytes,
          .row_stride = row_stride == 0 ? row_bytes : row_stride};
}

RowLayout SplitPage(int32_t value_bytes, int32_t scale_bytes, int32_t page_rows,
                    int64_t page_bytes) {
  return {.format = RowFormat::kSplitPage,
          .value_bytes = value_bytes,
          .scale_bytes = scale_bytes,
          .page_rows = page_rows,
          .page_bytes = page_bytes};
}

GroupShape Shape(int32_t top_k, int32_t hot_size, int32_t regions, int32_t rows_per_request,
                 int32_t block_size, int32_t slot_count, int32_t max_blocks) {
  GroupShape shape;
  shape.top_k = top_k;
  shape.hot_size = hot_size;
  shape.region_count = regions;
  shape.rows_per_request = rows_per_request;
  shape.block_size = block_size;
  shape.slot_count = slot_count;
  shape.max_blocks = max_blocks;
  return shape;
}

GroupShape Aged(GroupShape shape) {
  shape.policy = EvictionPolicy::kAged;
  return shape;
}

RowLayout DeepSeekV4Layout() { return SplitPage(576, 8, 64, 37440); }

GroupFixture::GroupFixture(const GroupOptions& options)
    : num_real_rows(options.num_rows), options_(options) {
  GroupShape& s = options_.shape;
  if (s.region_stride == 0)
    s.region_stride = RegionStride(s.hot_size, ReservedRows(s.rows_per_request, s.policy));
  const int64_t hot_slots = int64_t{s.region_count} * s.hot_size;
  owner.assign(hot_slots, kNone);
  lru.resize(hot_slots);
  for (int64_t i = 0; i < hot_slots; ++i) lru[i] = static_cast<int16_t>(i % s.hot_size);
  index.assign(int64_t{s.region_count} * RegionIndexLength(s.hot_size), 0);
  if (s.policy == EvictionPolicy::kAged) {
    score.assign(hot_slots, 0);
    kept.assign(int64_t{s.region_count} * s.rows_per_request, kNone);
  }
  if (options_.shares_rows) directory.assign(int64_t{kDirectoryWords} * s.slot_count, 0);
  if (options_.tracking) {
    block_generation.assign(s.slot_count / s.block_size, 1);
    backed_generation.assign(s.slot_count, 1);
  }
  for (int32_t l = 0; l < layer_count(); ++l) {
    const RowLayout& layout = options_.layouts[l];
    host.emplace_back(StorageBytes(layout, s.slot_count), options_.sparse);
    hot.emplace_back(StorageBytes(layout, int64_t{s.region_count} * s.region_stride),
                     options_.sparse);
    views_.push_back({host[l].data(), hot[l].data(), layout});
  }
  if (!options_.sparse) {
    for (int32_t slot = 0; slot < s.slot_count; ++slot) FillHostRow(slot);
  }
  row_to_request.resize(num_rows());
  std::iota(row_to_request.begin(), row_to_request.end(), 0);
  newest_slot.assign(num_rows(), kNone);
  topk.assign(int64_t{num_rows()} * s.top_k, kNone);
  if (options_.positions) {
    block_table.assign(int64_t{s.region_count} * s.max_blocks, kNone);
    sequence_lengths.assign(s.region_count, kNone);
  }
  hot_indices.resize(topk.size());
  miss_mask.resize(topk.size());
  valid_counts.resize(num_rows());
  plan_slots.resize(topk.size());
  plan_hot_rows.resize(topk.size());
  plan_counts.resize(num_rows());
  PoisonOutputs();
}

GroupState GroupFixture::State() {
  GroupState state = {.owner = owner.data(), .lru = lru.data(), .index = index.data()};
  if (!score.empty()) state.score = score.data();
  if (!directory.empty()) state.directory = directory.data();
  if (!kept.empty()) state.kept = kept.data();
  return state;
}

SwapInParams GroupFixture::SwapIn() {
  SwapInParams p;
  p.shape = shape();
  p.state = State();
  if (options_.tracking) p.tracking = {block_generation.data(), backed_generation.data()};
  p.num_rows = num_rows();
  p.num_real_rows = &num_real_rows;
  p.row_to_request = row_to_request.data();
  p.topk = topk.data();
  p.newest_slot = newest_slot.data();
  p.block_table = options_.positions ? block_table.data() : nullptr;
  p.sequence_lengths = options_.positions ? sequence_lengths.data() : nullptr;
  p.hot_indices = hot_indices.data();
  p.miss_mask = miss_mask.data();
  p.valid_counts = valid_counts.data();
  p.plan = {plan_slots.data(), plan_hot_rows.data(), plan_counts.data()};
  p.layers = views_.data();
  p.layer_count = layer_count();
  p.stats = &stats;
  return p;
}

ReplayPlanParams GroupFixture::ReplayPlan() {
  ReplayPlanParams p;
  p.shape = shape();
  p.num_rows = num_rows();
  p.num_real_rows = &num_real_rows;
  p.plan = {plan_slots.data(), plan_hot_rows.data(), plan_counts.data()};
  p.state = State();
  p.row_to_request = row_to_request.data();
  p.layers = views_.data();
  p.layer_count = layer_count();
  p.stats = &stats;
  return p;
}

BackupParams GroupFixture::Backup() {
  BackupParams p;
  p.shape = shape();
  p.state = State();
  if (options_.tracking) p.tracking = {block_generation.data(), backed_generation.data()};
  p.layers = views_.data();
  p.layer_count = layer_count();
  p.stats = &stats;
  return p;
}

InvalidateParams GroupFixture::Invalidate(const std::vector<int32_t>& blocks) {
  blocks_ = blocks;
  InvalidateParams p;
  p.shape = shape();
  p.state = State();
  p.blocks = blocks_.data();
  p.block_count = static_cast<int32_t>(blocks_.size());
  p.stats = &stats;
  return p;
}

ResetRegionParams GroupFixture::ResetRegion(int32_t region) { return {shape(), State(), region}; }

void GroupFixture::PoisonOutputs() {
  for (auto* output :
       {&hot_indices, &miss_mask, &valid_counts, &plan_slots, &plan_hot_rows, &plan_counts}) {
    std::fill(output->begin(), output->end(), kPoison);
  }
}

void GroupFixture::FillHostRow(int32_t slot, uint8_t salt) {
  for (int32_t l = 0; l < layer_count(); ++l) {
    WriteRow(host[l].data(), layouts()[l], slot, PatternRow(l, slot, salt));
  }
}

void GroupFixture::FillHotRow(int32_t hot_row, int32_t slot, uint8_t salt) {
  for (int32_t l = 0; l < layer_count(); ++l) {
    WriteRow(hot[l].data(), layouts()[l], hot_row, PatternRow(l, slot, salt));
  }
}

std::string GroupFixture::HostRow(int32_t layer, int32_t slot) const {
  return ReadRow(host[layer].data(), layouts()[layer], slot);
}

std::string GroupFixture::HotRow(int32_t layer, int32_t hot_row) const {
  return ReadRow(hot[layer].data(), layouts()[layer], hot_row);
}

std::string GroupFixture::PatternRow(int32_t layer, int32_t slot, uint8_t salt) const {
  std::string bytes(RowBytes(layouts()[layer]), '\0');
  for (size_t b = 0; b < bytes.size(); ++b) {
    bytes[b] = static_cast<char>(PatternByte(slot, layer, static_cast<int64_t>(b)) + salt);
  }
  return bytes;
}

void GroupFixture::ForgetOwners(int32_t region) {
  const int32_t length = RegionIndexLength(shape().hot_size);
  std::fill_n(index.begin() + int64_t{region} * length, length, uint16_t{0});
  std::fill(directory.begin(), directory.end(), 0);
}

std::vector<int32_t> GroupFixture::Owners(int32_t region) const {
  const auto first = owner.begin() + int64_t{region} * shape().hot_size;
  return {first, first + shape().hot_size};
}

std::vector<int32_t> GroupFixture::Lru(int32_t region) const {
  const auto first = lru.begin() + int64_t{region} * shape().hot_size;
  return {first, first + shape().hot_size};
}

std::vector<int32_t> GroupFixture::Scores(int32_t region) const {
  if (score.empty()) return {};
  const auto first = score.begin() + int64_t{region} * shape().hot_size;
  return {first, first + shape().hot_size};
}

std::vector<int32_t> GroupFixture::Kept(int32_t region) const {
  if (kept.empty()) return {};
  const auto first = kept.begin() + int64_t{region} * shape().rows_per_request;
  return {first, first + shape().rows_per_request};
}

Counts GroupFixture::counts() const {
  Counts counts;
  ReadCounts(&stats, &counts);
  return counts;
}

std::string GroupFixture::GuardDamage() const {
  for (int32_t l = 0; l < layer_count(); ++l) {
    if (!host[l].GuardsIntact()) return "host pool of layer " + std::to_string(l);
    if (!hot[l].GuardsIntact()) return "hot buffer of layer " + std::to_string(l);
  }
  return "";
}

std::string Difference(const GroupFixture& a, const GroupFixture& b) {
  Counts counts_a = a.counts(), counts_b = b.counts();
  if (a.options().shares_rows) {
    for (const Counter where : {Counter::kBytesCopied, Counter::kRowsShared}) {
      counts_a[where] = counts_b[where] = 0;
    }
  }
  for (const std::string& text : {
           FirstDifference("hot_indices", a.hot_indices, b.hot_indices),
           FirstDifference("miss_mask", a.miss_mask, b.miss_mask),
           FirstDifference("valid_counts", a.valid_counts, b.valid_counts),
           PlanDifference(a, b),
           FirstDifference("owner", a.owner, b.owner),
           FirstDifference("lru", a.lru, b.lru),
           FirstDifference("score", a.score, b.score),
           FirstDifference("kept", a.kept, b.kept),
           FirstDifference("backed_generation", a.backed_generation, b.backed_generation),
           FirstDifference("counter", counts_a.values, counts_b.values, kCounterCount),
           BytesDifference("hot byte", a.hot, b.hot),
           BytesDifference("host byte", a.host, b.host),
       }) {
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace kvtier::testing
