// Phases 3 and 4 of IndexedResolver: what is missing, and which misses that makes.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"

namespace kvtier::cuda {

// The warp's missing positions, from number `missing_before` on.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ListMissing(int32_t missing_before) {
  for (int32_t first = first_word(); first < end_word(); first += kWords) {
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      const int32_t w = first + k;
      if (!kExact && w >= end_word()) continue;
      const uint32_t lanes = kExact ? missing_lanes_[k] : Shared<uint32_t>(t_.missing_at)[w];
      const int32_t position = w * kWarpThreads + Lane();
      if ((lanes >> Lane() & 1) != 0) {
        const int32_t q = missing_before + __popc(lanes & LanesBelow());
        Shared<uint16_t>(t_.position)[q] = static_cast<uint16_t>(position);
        Shared<int32_t>(t_.slot)[q] = kExact ? slots_[k] : Shared<int32_t>(t_.slot_at)[position];
      }
      missing_before += __popc(lanes);
    }
  }
}

// At the barrier of the cluster, if this block has arrived there and not waited yet. All threads.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::WaitForOthers() {
  if (must_wait_) WaitForCluster();
  must_wait_ = false;
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Leave() {
  WaitForOthers();
  if (!writes() || !AgreesOnSources()) return;
  while (arrivals_ < kArrivals) {
    Arrive();
    WaitForOthers();
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Arrive() {
  ArriveAtCluster();
  ++arrivals_;
  must_wait_ = true;
}

// What one block finds not to be backed is copied by none, and the other way round: a row may be
// backed up between the looks of two. The first block looks, the others leave out what it left out.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::AgreeOnSources() {
  if (!AgreesOnSources()) {
    FindSources();
    return;
  }
  WaitForOthers();
  if (writes()) FindSources();
  Arrive();
  WaitForOthers();
  if (!writes()) {
    AcquireFromSystem();
    int32_t* const slot = Shared<int32_t>(t_.slot);
#pragma unroll 1
    for (int32_t q = Thread(); q < missing_; q += threads()) {
      // Inputs that change during the step may have shown it something else.
      if (LoadFromFirstBlock(slot + q) != slot[q]) slot[q] = kNone;
    }
  }
  Arrive();  // the first block stays until all have
}

// Adds up what the warps have left in shared memory: all of it, and that of the warps before this
// one. Both are less than 1 << 16. All lanes.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::SumOverWarps(const uint32_t* of_warps,
                                                                        int32_t* all,
                                                                        int32_t* before) const {
  const uint32_t of_lane = Lane() < warps() ? of_warps[Lane()] : 0;
  const uint32_t sums =
      __reduce_add_sync(kAllLanes, of_lane | (Lane() < Warp() ? of_lane << 16 : 0));
  *all = static_cast<int32_t>(sums & 0xffff);
  *before = static_cast<int32_t>(sums >> 16);
}

KVTIER_RESOLVER template <typename Function>
__device__ inline bool KVTIER_RESOLVER_OF::FindMissing(int32_t turn, const Function& start) {
  if constexpr (kBulk) {
    WaitForBulkCopies(Shared<uint64_t>(t_.barrier));
  } else {
    WaitForCopies();
    __syncthreads();
  }
  // The others will write what this thread has read, and it has written nothing that they read.
  ArriveFencedAtCluster();
  ++arrivals_;
  must_wait_ = true;
  builds_ = !index().IsUsable();
  if (builds_ && !BuildIndex()) return false;

  const int32_t missing_of_warp = FindAll();
  if (turn < missing_of_warp) StartOne(turn, start);
  if (Lane() == 0) {
    Shared<uint32_t>(t_.warp_sums)[Warp()] = static_cast<uint32_t>(missing_of_warp);
  }
  __syncthreads();

  int32_t missing_before = 0;
  SumOverWarps(Shared<uint32_t>(t_.warp_sums), &missing_, &missing_before);
  misses_ = missing_;
  if (missing_ > 0) {
    ListMissing(missing_before);
    ClearTable();
  }
  if constexpr (kAged) {
    if (missing_ > 0 || writes()) AgeScores();
  }
  uint32_t largest = 0, order_sum = 0, hits = 0;
  for (int32_t w = first_order_word(); w < end_order_word(); w += kOrderWords) {
    order_ = ReadOrder(w);
    CheckOrder(w, order_, &largest, &order_sum);
    hits += static_cast<uint32_t>(order_.CountHits());
  }
  order_sum = __reduce_add_sync(kAllLanes, order_sum);
  if (Lane() == 0) {
    atomicAdd(words() + kOrderSum, static_cast<int32_t>(order_sum));
    Shared<uint32_t>(t_.warp_hits)[Warp()] = hits;
  }
  constexpr uint32_t kSoundSum = kExact ? MixOfAll(kHotSize) : 0;
  const bool in_range = __syncthreads_and(largest < static_cast<uint32_t>(hot_size())) != 0;
  SumOverWarps(Shared<uint32_t>(t_.warp_hits), &hits_, &older_hits_);
  // The last one holds for every permutation; whatever the order is, moves stay inside it.
  return in_range && static_cast<uint32_t>(words()[kOrderSum]) == kSoundSum &&
         hits_ + missing_ <= hot_size();
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ClearTable() {
  const uint4 ones = make_uint4(~0u, ~0u, ~0u, ~0u);  // kFree
  for (int32_t i = Thread(); i < t_.table_entries / 4; i += threads()) {
    Shared<uint4>(t_.table)[i] = ones;
  }
}

// Enters missing position q into the table of slots. True if another one has its slot.
KVTIER_RESOLVER __device__ inline bool KVTIER_RESOLVER_OF::EnterMissing(int32_t q) {
  const auto* const slot = Shared<int32_t>(t_.slot);
  auto* const table = Shared<int32_t>(t_.table);
  const auto mask = static_cast<uint32_t>(t_.table_entries - 1);
  uint32_t entry = static_cast<uint32_t>(slot[q]) * 0x9e3779b1u >> 12 & mask;
  int32_t seen;
  for (;; entry = (entry + 1) & mask) {
    seen = atomicCAS(table + entry, kFree, q);
    if (seen == kFree || slot[seen] == slot[q]) break;
  }
  Shared<uint16_t>(t_.first)[q] = static_cast<uint16_t>(entry);
  if (seen == kFree) return false;
  // It may give way to an earlier one of its slot.
  atomicMin(table + entry, q);
  return true;
}

// Enters all missing positions, and starts to read their generations. Returns the flags that the
// thread has found reason for.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::NoteMissing() {
  int32_t flags = 0;
#pragma unroll 1
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    if (EnterMissing(q)) flags |= kRepeats;
    const int32_t slot = Shared<int32_t>(t_.slot)[q];
    const bool is_tracked = p_.tracking.backed_generation != nullptr;
    if (is_tracked || slot >= p_.shape.slot_count) flags |= kDoubted;
    if (!is_tracked || !writes() || slot >= p_.shape.slot_count) continue;
    CopyAsync<4>(Shared<int32_t>(t_.backed) + q, p_.tracking.backed_generation + slot);
    CopyAsync<4>(Shared<int32_t>(t_.current) + q,
                 p_.tracking.block_generation + slot / p_.shape.block_size);
  }
  return flags;
}

// Some slots are asked for by several: numbers the firsts. All threads.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::NumberFirsts() {
  auto* const first = Shared<uint16_t>(t_.first);
  auto* const firsts = Shared<uint32_t>(t_.firsts);
#pragma unroll 1
  for (int32_t start = Warp() * kWarpThreads; start < missing_; start += threads()) {
    const int32_t q = start + Lane();
    if (q < missing_) {
      first[q] = static_cast<uint16_t>(Shared<int32_t>(t_.table)[first[q]]);
    }
    const uint32_t lanes = __ballot_sync(kAllLanes, q < missing_ && first[q] == q);
    if (Lane() == 0) firsts[start / kWarpThreads] = lanes;
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    if (first[q] != q) continue;
    int32_t m = __popc(firsts[q / kWarpThreads] & ((1u << q % kWarpThreads) - 1));
#pragma unroll 1
    for (int32_t w = 0; w < q / kWarpThreads; ++w) m += __popc(firsts[w]);
    Shared<uint16_t>(t_.miss)[q] = static_cast<uint16_t>(m);
    Shared<uint16_t>(t_.origin)[m] = static_cast<uint16_t>(q);
  }
  misses_ = 0;
#pragma unroll 1
  for (int32_t w = 0; w < Divide(missing_, kWarpThreads); ++w) misses_ += __popc(firsts[w]);
}

// Misses whose bytes are not in the host pool lose their slot. By the threads that started to read
// the generations.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::FindSources() {
  WaitForCopies();
  // Whoever published a generation wrote the bytes before.
  AcquireFromSystem();
#pragma unroll 1
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    int32_t* const slot = Shared<int32_t>(t_.slot) + q;
    Counter refusal;
    if (*slot >= p_.shape.slot_count) {
      refusal = Counter::kUnsourced;
    } else if (p_.tracking.backed_generation != nullptr &&
               Shared<int32_t>(t_.backed)[q] != Shared<int32_t>(t_.current)[q]) {
      refusal = Counter::kUnbackedReads;
    } else {
      continue;
    }
    *slot = kNone;
    const bool is_miss = !repeats_ || Shared<uint16_t>(t_.first)[q] == q;
    if (writes() && is_miss) BlockCounts(Shared<int32_t>(t_.counts)).Add(refusal, 1);
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Resolve() {
  if (missing_ == 0) {
    WaitForOthers();
    Reorder();
    return;
  }
  const int32_t flags_of_warp =
      static_cast<int32_t>(__reduce_or_sync(kAllLanes, static_cast<uint32_t>(NoteMissing())));
  if (Lane() == 0 && flags_of_warp != 0) atomicOr(words() + kFlags, flags_of_warp);
  if constexpr (kAged) {
    if (Warp() == warps() - 1) FindLimit();
  } else {
    ListVictims();
  }
  __syncthreads();
  const int32_t flags = words()[kFlags];
  repeats_ = (flags & kRepeats) != 0;
  if (repeats_) NumberFirsts();
  WaitForOthers();
  if constexpr (!kAged) Reorder();
  if constexpr (kAged) {
    if (repeats_) {  // there are fewer misses than it was found for
      if (Warp() == warps() - 1) FindLimit();
      __syncthreads();
    }
    CountDraws();
    __syncthreads();
    ListDraws();
  }
  if ((flags & kDoubted) != 0) AgreeOnSources();
  if (kAged || flags != 0) __syncthreads();
}

}  // namespace kvtier::cuda
