// A layer group in ordinary memory: every buffer that the kernels take, and their arguments.
//
//   GroupFixture group({.shape = {.top_k = 8, .hot_size = 16, ...}, .layouts = {Contiguous(656)}});
//   group.topk = {...};
//   reference::SwapIn(group.SwapIn());
//
// Two fixtures that were given the same steps by two implementations must not differ:
//   EXPECT_EQ(Difference(a, b), "");
//
// Standard library only, so that benchmarks and other floors can use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "kernels/testing/byte_buffer.h"

namespace kvtier::testing {

// What outputs hold before a call, to see that every one is written.
inline constexpr int32_t kPoison = 123456;

RowLayout Contiguous(int32_t row_bytes, int64_t row_stride = 0);  // 0: rows without padding
RowLayout SplitPage(int32_t value_bytes, int32_t scale_bytes, int32_t page_rows,
                    int64_t page_bytes);

// A group's sizes; its region_stride is computed where the group is made. And the same with scores.
GroupShape Shape(int32_t top_k, int32_t hot_size, int32_t regions, int32_t rows_per_request,
                 int32_t block_size, int32_t slot_count, int32_t max_blocks);
GroupShape Aged(GroupShape shape);

// DeepSeek-V4's compressed cache: 64 rows a page, 576 + 8 bytes a row, 37,440 bytes a page.
RowLayout DeepSeekV4Layout();

// Byte `byte` of host row `slot` of layer `layer` unless a test says otherwise.
constexpr uint8_t PatternByte(int64_t slot, int64_t layer, int64_t byte) {
  return static_cast<uint8_t>((31 * slot + 7 * byte + 13 * layer) & 0xff);
}

struct GroupOptions {
  GroupShape shape;                // region_stride 0: computed
  std::vector<RowLayout> layouts;  // one a layer
  int32_t num_rows = 1;            // batch rows of a call
  bool positions = false;          // top-k names positions (block table) instead of slots
  bool tracking = false;           // rows are backed or not
  bool sparse = false;             // host and hot buffers are sparse, and host rows all zero
  bool shares_rows = false;        // there is a directory
  int32_t shared_blocks = 0;       // of each region, that all regions have (RandomSteps)
};

class GroupFixture {
 public:
  explicit GroupFixture(const GroupOptions& options);

  const GroupShape& shape() const { return options_.shape; }
  const std::vector<RowLayout>& layouts() const { return options_.layouts; }
  int32_t layer_count() const { return static_cast<int32_t>(options_.layouts.size()); }
  int32_t num_rows() const { return options_.num_rows; }
  const GroupOptions& options() const { return options_; }

  // Arguments that point into this fixture, with all layers.
  SwapInParams SwapIn();
  ReplayPlanParams ReplayPlan();
  BackupParams Backup();  // rows, slots and sources are the caller's to fill in
  InvalidateParams Invalidate(const std::vector<int32_t>& blocks);
  ResetRegionParams ResetRegion(int32_t region);

  void PoisonOutputs();
  // Pattern (plus `salt`) into one host row of all layers; into all rows in the constructor.
  void FillHostRow(int32_t slot, uint8_t salt = 0);
  // The same bytes into a hot row, as a model writes its newest token.
  void FillHotRow(int32_t hot_row, int32_t slot, uint8_t salt = 0);

  // The bytes a row carries: values, then scales.
  std::string HostRow(int32_t layer, int32_t slot) const;
  std::string HotRow(int32_t layer, int32_t hot_row) const;
  std::string PatternRow(int32_t layer, int32_t slot, uint8_t salt = 0) const;

  int32_t region_start(int32_t region) const { return region * shape().region_stride; }
  // For writing: what the kernels know of the region's owners is void then.
  int32_t& owner_of(int32_t region, int32_t hot_slot) {
    ForgetOwners(region);
    return owner[int64_t{region} * shape().hot_size + hot_slot];
  }
  void ForgetOwners(int32_t region);
  std::vector<int32_t> Owners(int32_t region) const;
  std::vector<int32_t> Lru(int32_t region) const;
  std::vector<int32_t> Scores(int32_t region) const;  // empty under kLru
  std::vector<int32_t> Kept(int32_t region) const;    // empty under kLru
  Counts counts() const;

  // Empty, or which buffer was written past its ends.
  std::string GuardDamage() const;

  // State.
  std::vector<int32_t> owner;      // [region_count, hot_size]
  std::vector<int16_t> lru;        // [region_count, hot_size]
  std::vector<uint16_t> index;     // [region_count, RegionIndexLength(hot_size)]; no result
  std::vector<uint8_t> score;      // [region_count, hot_size] under kAged, else empty
  std::vector<int32_t> directory;  // [slot_count, 2] if rows are shared, else empty; no result
  std::vector<int32_t> kept;       // [region_count, rows_per_request] under kAged, else empty
  std::vector<int32_t> block_generation, backed_generation;
  StatsBlock stats;
  std::vector<ByteBuffer> host, hot;  // [layer]

  // Inputs.
  int32_t num_real_rows;
  std::vector<int32_t> row_to_request, newest_slot;    // [num_rows]
  std::vector<int32_t> topk;                           // [num_rows, top_k]
  std::vector<int32_t> block_table, sequence_lengths;  // [region_count, max_blocks], [..]

  // Outputs.
  std::vector<int32_t> hot_indices, miss_mask;     // [num_rows, top_k]
  std::vector<int32_t> valid_counts;               // [num_rows]
  std::vector<int32_t> plan_slots, plan_hot_rows;  // [num_rows, top_k]
  std::vector<int32_t> plan_counts;                // [num_rows]

 private:
  GroupState State();

  GroupOptions options_;
  std::vector<LayerView> views_;
  std::vector<int32_t> blocks_;
};

// Empty if outputs, plans, state, counters and all bytes are equal, else the first difference.
// Where rows are shared, how many came from where is not compared.
std::string Difference(const GroupFixture& a, const GroupFixture& b);

}  // namespace kvtier::testing
