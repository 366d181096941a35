#include "server/host_pool/block_ledger_runs.h"

#include <algorithm>
#include <iterator>

namespace kvtier {

FreeRuns::FreeRuns(int32_t block_count) {
  if (block_count > 0) Insert(0, block_count);
  free_count_ = std::max(block_count, 0);
}

bool FreeRuns::IsFree(int32_t block) const {
  auto run = by_start_.upper_bound(block);
  if (run == by_start_.begin()) return false;
  --run;
  return block - run->first < run->second;
}

std::vector<int32_t> FreeRuns::Take(int32_t count, int32_t next_to, int32_t room) {
  std::vector<int32_t> taken;
  taken.reserve(count);
  const auto missing = [&] { return count - static_cast<int32_t>(taken.size()); };
  if (missing() > 0 && next_to >= 0 && IsFree(next_to)) {
    const int32_t run_start = std::prev(by_start_.upper_bound(next_to))->first;
    TakeFrom(run_start, next_to, missing(), &taken);
  }
  if (missing() > 0) {
    // 64 bits: count and room are each up to 2^31 - 1.
    const int64_t roomy = int64_t{missing()} + std::max(room, 0);
    auto run = by_length_.end();
    if (roomy <= largest_run()) {
      run = by_length_.lower_bound({static_cast<int32_t>(roomy), 0});
    } else if (missing() <= largest_run()) {
      run = by_length_.lower_bound({missing(), 0});
    }
    if (run != by_length_.end()) {
      const int32_t start = run->second;
      TakeFrom(start, start, missing(), &taken);
    }
  }
  while (missing() > 0 && !by_start_.empty()) {
    const int32_t start = by_start_.begin()->first;
    TakeFrom(start, start, missing(), &taken);
  }
  return taken;
}

void FreeRuns::Put(std::vector<int32_t> blocks) {
  std::sort(blocks.begin(), blocks.end());
  size_t begin = 0;
  while (begin < blocks.size()) {
    size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) ++end;
    PutRange(blocks[begin], static_cast<int32_t>(end - begin));
    begin = end;
  }
}

void FreeRuns::TakeFrom(int32_t run_start, int32_t start, int32_t count,
                        std::vector<int32_t>* taken) {
  const int32_t length = by_start_.at(run_start);
  const int32_t before = start - run_start;
  const int32_t part = std::min(count, length - before);
  const int32_t after = length - before - part;
  Erase(run_start, length);
  if (before > 0) Insert(run_start, before);
  if (after > 0) Insert(start + part, after);
  for (int32_t i = 0; i < part; ++i) taken->push_back(start + i);
  free_count_ -= part;
}

void FreeRuns::PutRange(int32_t start, int32_t length) {
  free_count_ += length;
  const auto next = by_start_.lower_bound(start);
  int32_t merged_start = start, merged_length = length;
  int32_t next_start = -1, next_length = 0;
  if (next != by_start_.end() && next->first == start + length) {
    next_start = next->first;
    next_length = next->second;
  }
  if (next != by_start_.begin()) {
    const auto before = std::prev(next);
    const int32_t before_start = before->first, before_length = before->second;
    if (before_start + before_length == start) {
      Erase(before_start, before_length);
      merged_start = before_start;
      merged_length += before_length;
    }
  }
  if (next_length > 0) {
    Erase(next_start, next_length);
    merged_length += next_length;
  }
  Insert(merged_start, merged_length);
}

void FreeRuns::Insert(int32_t start, int32_t length) {
  by_start_.emplace(start, length);
  by_length_.emplace(length, start);
}

void FreeRuns::Erase(int32_t start, int32_t length) {
  by_start_.erase(start);
  by_length_.erase({length, start});
}

}  // namespace kvtier
