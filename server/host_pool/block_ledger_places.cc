#include "server/host_pool/block_ledger_places.h"

#include <algorithm>

namespace kvtier {
namespace {

// Holders that grow take blocks in turn. One that has taken none for so many rounds of all that
// claim something grows no more.
constexpr int64_t kIdleRounds = 4;

int32_t CountOf(int32_t block_count, int32_t size) {
  return static_cast<int32_t>((int64_t{block_count} + size - 1) / size);
}

}  // namespace

BlockPlaces::BlockPlaces(int32_t block_count, int32_t neighbourhood_blocks)
    : size_(std::max(neighbourhood_blocks, 1)),
      block_count_(std::max(block_count, 0)),
      free_(block_count_),
      all_(CountOf(block_count_, size_)),
      whole_(CountOf(block_count_, size_)) {
  for (int32_t id = 0; id < static_cast<int32_t>(all_.size()); ++id) {
    all_[id].free = End(id) - Begin(id);
  }
}

int32_t BlockPlaces::End(int32_t id) const {
  return static_cast<int32_t>(std::min((int64_t{id} + 1) * size_, int64_t{block_count_}));
}

std::vector<int32_t> BlockPlaces::Take(Holder holder, int32_t count, int32_t next_to,
                                       int32_t room) {
  Taking taking = {.holder = holder, .missing = count, .taken = {}};
  taking.taken.reserve(count);
  ++take_count_;
  if (next_to >= 0) TakeBehind(next_to, &taking);
  TakeClaimed(&taking);
  TakeWhole(room, &taking);
  if (taking.missing > 0) {
    EndIdleClaims();
    TakeWhole(room, &taking);
  }
  TakePartial(room, &taking);
  TakeOthers(&taking);
  Touch(holder);
  return std::move(taking.taken);
}

void BlockPlaces::TakeOne(int32_t block) {
  const int32_t id = Of(block);
  free_.Take({block, 1});
  Change(id, all_[id].free - 1, all_[id].claimed_by);
}

void BlockPlaces::Put(std::vector<int32_t> blocks) {
  std::sort(blocks.begin(), blocks.end());
  size_t begin = 0;
  while (begin < blocks.size()) {
    const int32_t id = Of(blocks[begin]);
    size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1 && Of(blocks[end]) == id) {
      ++end;
    }
    const auto length = static_cast<int32_t>(end - begin);
    free_.Put({blocks[begin], length});
    Change(id, all_[id].free + length, all_[id].claimed_by);
    begin = end;
  }
}

void BlockPlaces::Forget(Holder holder) {
  for (auto claims = claims_.find(holder); claims != claims_.end(); claims = claims_.find(holder)) {
    const int32_t id = *claims->second.ids.begin();
    Change(id, all_[id].free, kNobody);
  }
}

int32_t BlockPlaces::ClaimsOf(Holder holder) const {
  const auto claims = claims_.find(holder);
  return claims == claims_.end() ? 0 : static_cast<int32_t>(claims->second.ids.size());
}

void BlockPlaces::TakeBehind(int32_t next_to, Taking* taking) {
  while (taking->missing > 0 && next_to < block_count_) {
    const int32_t id = Of(next_to);
    if (all_[id].claimed_by != kNobody && all_[id].claimed_by != taking->holder) return;
    Run run = free_.From(next_to);
    run.length = std::min({run.length, End(id) - next_to, taking->missing});
    if (run.length == 0) return;
    TakeRun(run, taking);
    Change(id, all_[id].free, taking->holder);
    next_to += run.length;
  }
}

void BlockPlaces::TakeClaimed(Taking* taking) {
  while (taking->missing > 0) {
    const auto claims = claims_.find(taking->holder);
    if (claims == claims_.end()) return;
    TakeIn(*claims->second.ids.begin(), taking);
  }
}

void BlockPlaces::TakeWhole(int32_t room, Taking* taking) {
  while (taking->missing > 0 && whole_.free_count() > 0) {
    const int64_t roomy = int64_t{taking->missing} + std::max(room, 0);
    const int64_t needed = (int64_t{taking->missing} + size_ - 1) / size_;
    const int64_t wanted = (roomy + size_ - 1) / size_;
    const Run ids = whole_.Fit(wanted <= whole_.largest_run() ? wanted : needed);
    const auto end = static_cast<int32_t>(ids.start + std::min<int64_t>(ids.length, wanted));
    for (int32_t id = ids.start; id < end; ++id) {
      if (taking->missing > 0) {
        TakeIn(id, taking);
      } else {
        Change(id, all_[id].free, taking->holder);
      }
    }
  }
}

void BlockPlaces::TakePartial(int32_t room, Taking* taking) {
  while (taking->missing > 0 && !partial_.empty()) {
    // Who takes one block will take more: not a place that is full at once.
    const int64_t roomy = int64_t{taking->missing} + std::max(room, size_ / 2);
    const int32_t most = partial_.rbegin()->first;
    const auto wanted = static_cast<int32_t>(std::min<int64_t>(roomy, most));
    TakeIn(partial_.lower_bound({wanted, 0})->second, taking);
  }
}

void BlockPlaces::TakeOthers(Taking* taking) {
  while (taking->missing > 0 && !claimed_.empty()) {
    const int32_t id = claimed_.rbegin()->second;
    Run run = LongestIn(id);
    const int32_t length = std::min(run.length, taking->missing);
    run.start += (run.length - length + 1) / 2;
    run.length = length;
    TakeRun(run, taking);
  }
}

void BlockPlaces::TakeIn(int32_t id, Taking* taking) {
  while (taking->missing > 0) {
    Run run = free_.FirstIn(Begin(id), End(id));
    if (run.length == 0) break;
    run.length = std::min(run.length, taking->missing);
    TakeRun(run, taking);
  }
  Change(id, all_[id].free, taking->holder);
}

void BlockPlaces::TakeRun(Run run, Taking* taking) {
  const int32_t id = Of(run.start);
  free_.Take(run);
  Change(id, all_[id].free - run.length, all_[id].claimed_by);
  taking->missing -= run.length;
  for (int32_t i = 0; i < run.length; ++i) taking->taken.push_back(run.start + i);
}

FreeRuns::Run BlockPlaces::LongestIn(int32_t id) const {
  Run longest;
  Run run = free_.FirstIn(Begin(id), End(id));
  while (run.length > 0) {
    if (run.length > longest.length) longest = run;
    run = free_.FirstIn(run.start + run.length, End(id));
  }
  return longest;
}

void BlockPlaces::Touch(Holder holder) {
  const auto claims = claims_.find(holder);
  if (claims == claims_.end()) return;
  by_last_take_.erase({claims->second.last_take, holder});
  claims->second.last_take = take_count_;
  by_last_take_.emplace(take_count_, holder);
}

void BlockPlaces::EndIdleClaims() {
  while (!by_last_take_.empty()) {
    const auto [last_take, holder] = *by_last_take_.begin();
    const int64_t rounds = kIdleRounds * static_cast<int64_t>(by_last_take_.size());
    if (take_count_ - last_take <= rounds) return;
    Forget(holder);
  }
}

void BlockPlaces::Change(int32_t id, int32_t free, Holder claimed_by) {
  Unlist(id);
  all_[id] = {.free = free, .claimed_by = free > 0 ? claimed_by : kNobody};
  List(id);
}

void BlockPlaces::List(int32_t id) {
  const Neighbourhood& it = all_[id];
  if (it.free == 0) return;
  if (it.claimed_by != kNobody) {
    claimed_.emplace(it.free, id);
    const auto [claims, first] = claims_.try_emplace(it.claimed_by);
    claims->second.ids.insert(id);
    if (first) {
      claims->second.last_take = take_count_;
      by_last_take_.emplace(take_count_, it.claimed_by);
    }
  } else if (IsWhole(id)) {
    whole_.Put({id, 1});
  } else {
    partial_.emplace(it.free, id);
  }
}

void BlockPlaces::Unlist(int32_t id) {
  const Neighbourhood& it = all_[id];
  if (it.free == 0) return;
  if (it.claimed_by != kNobody) {
    claimed_.erase({it.free, id});
    const auto claims = claims_.find(it.claimed_by);
    claims->second.ids.erase(id);
    if (claims->second.ids.empty()) {
      by_last_take_.erase({claims->second.last_take, it.claimed_by});
      claims_.erase(claims);
    }
  } else if (IsWhole(id)) {
    whole_.Take({id, 1});
  } else {
    partial_.erase({it.free, id});
  }
}

}  // namespace kvtier
