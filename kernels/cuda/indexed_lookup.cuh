// Phases 1 and 2 of IndexedResolver: what is asked for, and who owns it.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"

namespace kvtier::cuda {

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Clear() {
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  for (int32_t i = Thread(); i < Divide(hot_size(), 16); i += threads()) {
    Shared<uint4>(t_.is_hit)[i] = zeros;
  }
  if constexpr (kAged) ClearScores();
  if (Warp() != 0) return;
  if (Lane() >= 1 && Lane() < kWordsUsed) words()[Lane()] = 0;
  if (Lane() < kCounterCount) Shared<int32_t>(t_.counts)[Lane()] = 0;
  if (kBulk && Lane() == 0) InitBulkBarrier(Shared<uint64_t>(t_.barrier));
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ReadPositions() {
  LoadValues(first_word());
  if (p_.newest_slot != nullptr) newest_ = p_.newest_slot[row_];
}

// Of the warp's words from `first` on, kWords at most.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::LoadValues(int32_t first) {
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) {
    const int32_t position = (first + k) * kWarpThreads + Lane();
    slots_[k] = kNone;
    if (kExact || (first + k < end_word() && position < top_k())) slots_[k] = topk_[position];
  }
}

// From top-k values to slots.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::FindSlots() {
  if (p_.block_table == nullptr) return;
  const int32_t length = p_.sequence_lengths == nullptr ? kNone : p_.sequence_lengths[region_];
  const int32_t* const blocks = p_.block_table + int64_t{region_} * p_.shape.max_blocks;
  if (block_shift_ < 0) {
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      slots_[k] = ResolveSlot(blocks, p_.shape.max_blocks, p_.shape.block_size, length, slots_[k]);
    }
    return;
  }
  // ResolveSlot() for a power of two. As unsigned numbers, what is negative is too large.
  const uint32_t end = length < 0 ? 0x80000000u : static_cast<uint32_t>(length);
  int32_t found[kWords];
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) {
    const auto position = static_cast<uint32_t>(slots_[k]);
    const uint32_t index = position >> block_shift_;
    found[k] = kNone;
    if (position < end && index < static_cast<uint32_t>(p_.shape.max_blocks)) {
      found[k] = blocks[index];
    }
  }
  const uint32_t block_end = 0x80000000u >> block_shift_;
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) {
    const int32_t offset = slots_[k] & (p_.shape.block_size - 1);
    slots_[k] =
        static_cast<uint32_t>(found[k]) < block_end ? found[k] << block_shift_ | offset : kNone;
  }
}

KVTIER_RESOLVER template <typename T>
__device__ inline void KVTIER_RESOLVER_OF::LoadImage(T* image, const T* from, int32_t count) const {
  constexpr int32_t kVector = 16 / sizeof(T);
  if (count % kVector == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    for (int32_t i = Thread() * kVector; i < count; i += threads() * kVector) {
      CopyAsync<16>(image + i, from + i);
    }
    return;
  }
  for (int32_t i = Thread(); i < count; i += threads()) image[i] = LoadRelaxed(from + i);
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::StartBulk(int32_t region) {
  if constexpr (kBulk) {
    const int64_t first = int64_t{region} * kHotSize;
    auto* const barrier = Shared<uint64_t>(t_.barrier);
    ExpectBulkBytes(barrier, 2 * t_.index_length + (kAged ? 7 : 6) * kHotSize);
    CopyBulkAsync(Shared<uint16_t>(t_.index), p_.state.index + int64_t{region} * t_.index_length,
                  2 * t_.index_length, barrier);
    CopyBulkAsync(Shared<int32_t>(t_.owner), p_.state.owner + first, 4 * kHotSize, barrier);
    CopyBulkAsync(Shared<int16_t>(t_.order), p_.state.lru + first, 2 * kHotSize, barrier);
    if constexpr (kAged) {
      CopyBulkAsync(Shared<uint8_t>(t_.score), p_.state.score + first, kHotSize, barrier);
    }
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ReadState(int32_t region) {
  region_ = region;
  base_ = region * p_.shape.region_stride;
  const int64_t first = int64_t{region} * hot_size();
  const uint16_t* const index = p_.state.index + int64_t{region} * t_.index_length;
  const int32_t* const owner = p_.state.owner + first;
  const int16_t* const order = p_.state.lru + first;
  if constexpr (kAged) {  // beside index and scores: nobody waits for it
    const int32_t slot = p_.state.kept == nullptr ? kNone : LoadRelaxed(p_.state.kept + region);
    if (slot >= 0) kept_ = slot;
  }
  if constexpr (!kBulk) {
    LoadImage(Shared<uint16_t>(t_.index), index, t_.index_length);
    LoadImage(Shared<int32_t>(t_.owner), owner, hot_size());
    LoadImage(Shared<int16_t>(t_.order), order, hot_size());
    if constexpr (kAged) LoadImage(Shared<uint8_t>(t_.score), p_.state.score + first, hot_size());
  }
  FindSlots();
}

// Makes the image of the index from that of the owners. False: not all of them found a place, or
// two hot slots own one slot. All threads.
KVTIER_RESOLVER __device__ inline bool KVTIER_RESOLVER_OF::BuildIndex() {
  const auto* const owner = Shared<int32_t>(t_.owner);
  __syncthreads();
  index().Clear();
  __syncthreads();
  bool complete = true;
#pragma unroll 1
  for (int32_t h = Thread(); h < hot_size(); h += threads()) {
    if (owner[h] >= 0) complete &= index().Insert(h, owner[h], nullptr);
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t h = Thread(); h < hot_size(); h += threads()) {
    if (owner[h] >= 0) complete &= index().Find(owner[h]) == h;
  }
  return __syncthreads_and(complete) != 0;
}

// Outputs and bookkeeping for a position whose slot `hot_slot` owns, if any does.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Answer(int32_t word, int32_t slot,
                                                                  int32_t hot_slot) {
  const int32_t position = word * kWarpThreads + Lane();
  const bool exists = kExact || position < top_k();
  const bool is_lookup = slot >= 0 && slot != newest_;
  if (hot_slot >= 0) Shared<uint8_t>(t_.is_hit)[hot_slot] = 1;
  if (!writes()) return;
  int32_t answer = hot_slot < 0 ? kNone : base_ + hot_slot;
  const uint32_t others = __ballot_sync(kAllLanes, exists && !is_lookup);
  if (others != 0 && exists && !is_lookup) {
    if (slot >= 0) answer = base_ + hot_size();
    atomicAdd(words() + kTally, slot < 0 ? 1 : 1 << 16);
  }
  if (!exists) return;
  // What is missing gets its answer later.
  hot_indices_[position] = answer;
  if (p_.miss_mask != nullptr) p_.miss_mask[int64_t{row_} * top_k() + position] = 0;
}

// Looks up the slots of the words from `first` on, side by side. Returns how many are missing.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::FindPart(int32_t first) {
  RegionIndex::Search search[kWords];
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) search[k] = index().Start(slots_[k]);
  int32_t hot_slot[kWords];
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) hot_slot[k] = index().Candidate(search[k]);
  int32_t missing = 0;
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) {
    const int32_t slot = slots_[k];
    const bool is_lookup = slot >= 0 && slot != newest_;
    if (!is_lookup || !index().Owns(hot_slot[k], slot)) hot_slot[k] = kNone;
    const bool is_open = is_lookup && hot_slot[k] < 0;
    if (is_open && RegionIndex::MayGoOn(search[k])) {
      hot_slot[k] = index().Finish(search[k], slot);
    }
    missing_lanes_[k] = __ballot_sync(kAllLanes, is_open && hot_slot[k] < 0);
    missing += __popc(missing_lanes_[k]);
  }
#pragma unroll
  for (int32_t k = 0; k < kWords; ++k) {
    if (kExact || first + k < end_word()) Answer(first + k, slots_[k], hot_slot[k]);
  }
  return missing;
}

// Of all words of the warp; those that do not fit into registers leave what phase 3 needs in
// shared memory. Returns how many positions are missing.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::FindAll() {
  if constexpr (kExact) {
    return FindPart(first_word());
  } else {
    int32_t missing = 0;
    for (int32_t first = first_word(); first < end_word(); first += kWords) {
      if (first > first_word()) {
        LoadValues(first);
        FindSlots();
      }
      missing += FindPart(first);
      for (int32_t k = 0; k < kWords && first + k < end_word(); ++k) {
        if (Lane() == 0) Shared<uint32_t>(t_.missing_at)[first + k] = missing_lanes_[k];
        const int32_t position = (first + k) * kWarpThreads + Lane();
        if (position < top_k()) Shared<int32_t>(t_.slot_at)[position] = slots_[k];
      }
    }
    return missing;
  }
}

// Calls start(slot) with the slot of the warp's missing position number `turn`, which it has.
KVTIER_RESOLVER template <typename Function>
__device__ inline void KVTIER_RESOLVER_OF::StartOne(int32_t turn, const Function& start) const {
  if constexpr (!kExact) __syncwarp();
  for (int32_t first = first_word(); first < end_word(); first += kWords) {
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      const int32_t w = first + k;
      if (!kExact && w >= end_word()) return;
      const uint32_t lanes = kExact ? missing_lanes_[k] : Shared<uint32_t>(t_.missing_at)[w];
      const bool is_it = (lanes >> Lane() & 1) != 0 && __popc(lanes & LanesBelow()) == turn;
      const uint32_t found = __ballot_sync(kAllLanes, is_it);
      turn -= __popc(lanes);
      if (found == 0) continue;
      const int32_t lane = __ffs(static_cast<int32_t>(found)) - 1;
      start(kExact ? __shfl_sync(kAllLanes, slots_[k], lane)
                   : Shared<int32_t>(t_.slot_at)[w * kWarpThreads + lane]);
      return;
    }
  }
}

}  // namespace kvtier::cuda
