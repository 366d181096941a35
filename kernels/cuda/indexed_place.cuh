// Phase 5 of IndexedResolver: owners, outputs, plan and index; counts; and the order of copies.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

// The newest row is being rewritten, so a copy of what was there before is stale. A barrier is
// behind it if owners, which PlaceMiss() writes, have been asked about it.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::DropNewest() {
  if (p_.newest_slot == nullptr) return;
  if constexpr (kAged) {
    if (newest_ >= 0 && kept_ == newest_ && Thread() == 0)
      cuda::DropKept(p_.state.kept + region_, 1, newest_);
  }
  auto* const owner = Shared<int32_t>(t_.owner);
  const auto drop = [&](int32_t h) {
    if (newest_ < 0 || owner[h] != newest_) return;
    owner[h] = kNone;
    StoreRelaxed(p_.state.owner + int64_t{region_} * hot_size() + h, kNone);
  };
  // Those hot slots that the thread has asked about in AgeScores().
  if constexpr (kExact) {
#pragma unroll
    for (int32_t k = 0; k < kOfThread; ++k) drop(kOfThread * Thread() + k);
  } else {
#pragma unroll 1
    for (int32_t h = Thread(); h < hot_size(); h += threads()) drop(h);
  }
  __syncthreads();
}

// All that miss m changes but the index. Returns who owned its hot slot until now.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::PlaceMiss(int32_t m) {
  const int32_t hot_slot = VictimOf(m), slot = source(m);
  Shared<int32_t>(t_.owner)[hot_slot] = slot;
  const int32_t before =
      atomicExch(p_.state.owner + int64_t{region_} * hot_size() + hot_slot, slot);
  if constexpr (kAged) {
    Shared<uint8_t>(t_.score)[hot_slot] = slot < 0 ? kNoScore : kMissScore;
    if (slot == kept_) BlockCounts(Shared<int32_t>(t_.counts)).Add(Counter::kRowsKept, 1);
  }
  if (p_.miss_mask != nullptr && slot >= 0) {
    const int32_t position = Shared<uint16_t>(t_.position)[OriginOf(m)];
    p_.miss_mask[int64_t{row_} * top_k() + position] = 1;
  }
  if (writes_plan_) {
    const int64_t start = PlanStart(plan_.units == nullptr ? row_ : region_, top_k());
    plan_.slots[start + m] = KeptOr(slot);
    plan_.hot_rows[start + m] = base_ + hot_slot;
  }
  return before;
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Place() {
  WaitForOthers();
  DropNewest();
  if (misses_ > 0) {
    // Outputs are written while the first owners are on their way back.
    int32_t before = kNone;
    if (Thread() < misses_) before = PlaceMiss(Thread());
#pragma unroll 1
    for (int32_t q = Thread(); q < missing_; q += threads()) {
      hot_indices_[Shared<uint16_t>(t_.position)[q]] = hot_row(MissOf(q));
    }
    BlockCounts counts(Shared<int32_t>(t_.counts));
    counts.CountLanes(Counter::kEvictions, before >= 0);
#pragma unroll 1
    for (int32_t start = threads(); start < misses_; start += threads()) {
      const int32_t m = start + Thread();
      counts.CountLanes(Counter::kEvictions, m < misses_ && PlaceMiss(m) >= 0);
    }
    __syncthreads();  // what was counted, and the images of owners and scores
  }
  if constexpr (kAged) StoreScores();
  if (keeps_index()) KeepIndex();
  if (Thread() != 0) return;
  if (p_.valid_counts != nullptr) p_.valid_counts[row_] = top_k() - (words()[kTally] & 0xffff);
  if (!writes_plan_) return;
  plan_.counts[row_] = misses_;
  if (plan_.units != nullptr) plan_.units[row_] = region_;
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::KeepIndex() {
  if (misses_ == 0 && !builds_) return;
  WaitForOthers();
  uint16_t* const copy = p_.state.index + int64_t{region_} * t_.index_length;
  if (!writes()) {
#pragma unroll 1
    for (int32_t m = Thread(); m < misses_; m += threads()) {
      Shared<int32_t>(t_.owner)[VictimOf(m)] = source(m);
    }
    __syncthreads();
  }
  bool complete = draws_all_;
#pragma unroll 1
  for (int32_t m = Thread(); m < misses_; m += threads()) {
    const int32_t from = source(m);
    if (from >= 0) complete &= index().Insert(VictimOf(m), from, builds_ ? nullptr : copy);
  }
  if (!complete) StoreRelaxed(words() + kIncomplete, 1);
  __syncthreads();
  if (builds_) {
#pragma unroll 1
    for (int32_t i = Thread() + kIndexHeaderWords; i < t_.index_length; i += threads()) {
      copy[i] = Shared<uint16_t>(t_.index)[i];
    }
  }
  if (Thread() != 0) return;
  if (LoadRelaxed(words() + kIncomplete) == 0) {
    RegionIndex::SetComplete(copy, misses_ + (builds_ ? 0 : index().inserted()));
  } else {
    RegionIndex::Forget(copy);
  }
}

KVTIER_RESOLVER __device__ inline int64_t KVTIER_RESOLVER_OF::Count() const {
  const auto* const counts = Shared<int32_t>(t_.counts);
  const int32_t tally = words()[kTally];
  const int32_t invalid = tally & 0xffff, newest = tally >> 16;
  const int32_t refused = counts[static_cast<int32_t>(Counter::kUnsourced)] +
                          counts[static_cast<int32_t>(Counter::kUnbackedReads)];
  int32_t value = Lane() < kCounterCount ? counts[Lane()] : 0;
  const auto set = [&value](Counter counter, int32_t count) {
    value = Lane() == static_cast<int32_t>(counter) ? count : value;
  };
  set(Counter::kHits, hits_);
  set(Counter::kMisses, misses_);
  set(Counter::kNewest, newest);
  set(Counter::kInvalid, invalid);
  set(Counter::kDuplicates, top_k() - invalid - newest - hits_ - misses_);
  set(Counter::kRowsCopied, misses_ - refused);
  return value;
}

// A counting sort by the upper bits of the slot. Within a bucket the order is whatever it is, so it
// serves one block alone.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::SortByAddress() {
  constexpr int32_t kBuckets = kAddressBuckets;
  auto* const starts = Shared<int32_t>(t_.starts);
  const int32_t shift = max(23 - __clz(max(p_.shape.slot_count - 1, 1)), 0);
  const auto bucket_of = [&](int32_t m) { return min(max(source(m), 0) >> shift, kBuckets - 1); };
  __syncthreads();
#pragma unroll 1
  for (int32_t b = Thread(); b < kBuckets; b += threads()) starts[b] = 0;
  __syncthreads();
#pragma unroll 1
  for (int32_t m = Thread(); m < misses_; m += threads()) atomicAdd(starts + bucket_of(m), 1);
  __syncthreads();
  // One warp adds up: a lane has kBuckets / 32 neighbours.
  if (Warp() == 0) {
    constexpr int32_t kOfLane = kBuckets / kWarpThreads;
    int32_t sum = 0;
#pragma unroll 1
    for (int32_t k = 0; k < kOfLane; ++k) sum += starts[Lane() * kOfLane + k];
    int32_t before = InclusiveWarpSum(sum) - sum;
#pragma unroll 1
    for (int32_t k = 0; k < kOfLane; ++k) {
      const int32_t count = starts[Lane() * kOfLane + k];
      starts[Lane() * kOfLane + k] = before;
      before += count;
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t m = Thread(); m < misses_; m += threads()) {
    Shared<uint16_t>(t_.address)[atomicAdd(starts + bucket_of(m), 1)] = static_cast<uint16_t>(m);
  }
  __syncthreads();
}

}  // namespace kvtier::cuda
