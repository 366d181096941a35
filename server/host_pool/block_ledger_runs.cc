#include "server/host_pool/block_ledger_runs.h"

#include <algorithm>
#include <iterator>

namespace kvtier {

FreeRuns::FreeRuns(int32_t count) {
  if (count > 0) Put({0, count});
}

FreeRuns::Run FreeRuns::From(int32_t at) const {
  auto run = by_start_.upper_bound(at);
  if (run == by_start_.begin()) return {at, 0};
  --run;
  return {at, std::max(run->first + run->second - at, 0)};
}

FreeRuns::Run FreeRuns::FirstIn(int32_t begin, int32_t end) const {
  Run run = From(begin);
  if (run.length == 0) {
    const auto next = by_start_.lower_bound(begin);
    if (next == by_start_.end()) return {begin, 0};
    run = {next->first, next->second};
  }
  run.length = std::max(std::min(run.length, end - run.start), 0);
  return run;
}

FreeRuns::Run FreeRuns::Fit(int64_t length) const {
  if (by_length_.empty()) return {};
  const auto at_least = static_cast<int32_t>(std::min(length, int64_t{largest_run()}));
  const auto run = by_length_.lower_bound({at_least, 0});
  return {run->second, run->first};
}

void FreeRuns::Take(Run run) {
  const auto found = std::prev(by_start_.upper_bound(run.start));
  const int32_t start = found->first, length = found->second;
  const int32_t before = run.start - start;
  const int32_t after = length - before - run.length;
  Erase(start, length);
  if (before > 0) Insert(start, before);
  if (after > 0) Insert(run.start + run.length, after);
  free_count_ -= run.length;
}

void FreeRuns::Put(Run run) {
  free_count_ += run.length;
  const auto next = by_start_.lower_bound(run.start);
  Run before, after;
  if (next != by_start_.end() && next->first == run.start + run.length) {
    after = {next->first, next->second};
  }
  if (next != by_start_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == run.start) {
      before = {previous->first, previous->second};
    }
  }
  if (before.length > 0) Erase(before.start, before.length);
  if (after.length > 0) Erase(after.start, after.length);
  Insert(run.start - before.length, before.length + run.length + after.length);
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
