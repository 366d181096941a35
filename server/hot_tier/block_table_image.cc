#include "server/hot_tier/block_table_image.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "kernels/layout.h"

namespace kvtier {

void BlockTableImage::Write(int32_t region, int32_t first_entry,
                            const std::vector<int32_t>& block_ids) {
  std::vector<int32_t> row = rows_[region];
  const size_t end = static_cast<size_t>(first_entry) + block_ids.size();
  if (row.size() < end) row.resize(end, kNone);
  std::copy(block_ids.begin(), block_ids.end(), row.begin() + first_entry);
  Replace(region, std::move(row));
}

std::vector<int32_t> BlockTableImage::Remove(int32_t region,
                                             const std::vector<int32_t>& block_ids) {
  const absl::flat_hash_set<int32_t> removed(block_ids.begin(), block_ids.end());
  std::vector<int32_t> row = rows_[region];
  for (int32_t& block : row) {
    if (removed.contains(block)) block = kNone;
  }
  std::vector<int32_t> before = rows_[region];
  Replace(region, std::move(row));
  return before;
}

void BlockTableImage::Clear(int32_t region) {
  rows_[region].clear();
  MarkPending(region, 0, max_blocks_);
}

void BlockTableImage::Restore(int32_t region, const std::vector<int32_t>& row) {
  Replace(region, row);
}

std::optional<BlockTableImage::Change> BlockTableImage::TakeChange() {
  if (pending_.empty()) return std::nullopt;
  const auto [region, range] = *pending_.begin();
  pending_.erase(pending_.begin());
  Change change = {region, range.begin, std::vector<int32_t>(range.end - range.begin, kNone)};
  const std::vector<int32_t>& row = rows_[region];
  const int32_t end = std::min(range.end, static_cast<int32_t>(row.size()));
  for (int32_t i = range.begin; i < end; ++i) change.block_ids[i - range.begin] = row[i];
  return change;
}

void BlockTableImage::PutBack(const Change& change) {
  MarkPending(change.region, change.first_entry,
              change.first_entry + static_cast<int32_t>(change.block_ids.size()));
}

void BlockTableImage::Replace(int32_t region, std::vector<int32_t> row) {
  while (!row.empty() && row.back() == kNone) row.pop_back();
  std::vector<int32_t>& old = rows_[region];
  const size_t common = std::min(old.size(), row.size());
  const size_t longer = std::max(old.size(), row.size());
  const auto first = std::mismatch(old.begin(), old.begin() + common, row.begin()).first;
  const size_t begin = first - old.begin();
  size_t end = longer;
  if (old.size() == row.size()) {
    while (end > begin && old[end - 1] == row[end - 1]) --end;
  }
  old = std::move(row);
  if (begin < end) MarkPending(region, static_cast<int32_t>(begin), static_cast<int32_t>(end));
}

void BlockTableImage::MarkPending(int32_t region, int32_t begin, int32_t end) {
  const auto [range, added] = pending_.emplace(region, Range{begin, end});
  if (added) return;
  range->second.begin = std::min(range->second.begin, begin);
  range->second.end = std::max(range->second.end, end);
}

}  // namespace kvtier
