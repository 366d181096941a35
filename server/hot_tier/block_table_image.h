// What the block table on the device shall hold.
//
// The table lies in device memory; this is the daemon's own copy, which decides. Changes are
// made here and noted as pending until they have been enqueued, so that a device that refuses a
// write for a moment can never leave a block in a request's table that the request has lost:
// the write stays pending and is enqueued before anything else is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace kvtier {

// Not thread-safe.
class BlockTableImage {
 public:
  // Neighbouring entries of one region's row.
  struct Change {
    int32_t region = 0;
    int32_t first_entry = 0;
    std::vector<int32_t> block_ids;
  };

  BlockTableImage(int32_t region_count, int32_t max_blocks)
      : max_blocks_(max_blocks), rows_(region_count) {}

  // Entries up to the last one that names a block.
  const std::vector<int32_t>& row(int32_t region) const { return rows_[region]; }

  // Where the next block of a region goes: behind the last entry that names one. Entries that
  // were freed at the end are used again; those in the middle stay -1, since the positions of
  // the blocks behind them must not move.
  int32_t EndOf(int32_t region) const { return static_cast<int32_t>(rows_[region].size()); }

  // first_entry + block_ids.size() <= max_blocks.
  void Write(int32_t region, int32_t first_entry, const std::vector<int32_t>& block_ids);
  // Every entry that names one of `block_ids` becomes -1. Returns the row as it was.
  std::vector<int32_t> Remove(int32_t region, const std::vector<int32_t>& block_ids);
  // All entries -1; the whole row is written to the device.
  void Clear(int32_t region);
  // The row as it was before.
  void Restore(int32_t region, const std::vector<int32_t>& row);

  // One pending change, or none. The caller enqueues it, and gives it back if that failed.
  std::optional<Change> TakeChange();
  bool has_changes() const { return !pending_.empty(); }
  void PutBack(const Change& change);

 private:
  struct Range {
    int32_t begin = 0;
    int32_t end = 0;
  };

  void Replace(int32_t region, std::vector<int32_t> row);
  void MarkPending(int32_t region, int32_t begin, int32_t end);

  const int32_t max_blocks_;
  std::vector<std::vector<int32_t>> rows_;  // [region], without -1 at the end
  std::map<int32_t, Range> pending_;        // by region
};

}  // namespace kvtier
