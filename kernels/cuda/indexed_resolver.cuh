// One request's part of a swap-in through the index of its region: a step costs no more than its
// positions and one pass over the order.
//
// What Resolver (resolver.cuh) does for any call, this does for the common one: one row a
// request, an index (region_index.cuh), everything in shared memory. It reads the region's state as
// an image, and changes nothing before it knows that the order is sound: else it leaves the step to
// Resolver. All blocks of a row's cluster do the same work on images of their own, so that each
// knows every copy without asking; the first of them writes.
//
// Phases (a barrier behind each; 4 only if something is missing):
//   1. Load    images of owners, index and order; slots of the positions meanwhile
//   2. Find    each position in the index
//   3. Count   hits in the order, by warp; missing positions are listed in order
//   4. Unify   missing positions with one slot are one miss: a thread has one of them. Beside that
//              the victims are listed, the oldest hot slots without a hit: the m-th is for the
//              m-th miss, however many there are in the end
//   5. Place   the new LRU order, owners, outputs, plan, and the index; by the block that writes
// A warp has consecutive positions and consecutive order entries, so ranks are popcounts and the
// sum over the warps before, which each warp adds up by itself.
//
// An order is sound if every entry is a hot slot and the sum of a bijective mix of the entries is
// that of a permutation. One wrong entry is always seen; several would have to keep a 32-bit sum.
// An entry out of range is never used.
//
// What a block costs is the number of instructions: 1,024 threads keep the four schedulers of a
// multiprocessor busy, and each instruction of every warp takes eight cycles of one. Hence the
// instance for the sizes of DeepSeek-V3.2 and GLM-5, in which all lengths are constants.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/indexed_tables.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/region_index.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/stats.cuh"
#include "kernels/eviction.h"

namespace kvtier::cuda {

// kTopK, kHotSize: the sizes, or 0 for those of `tables`. kThreads: of the block, or 0. kAged: hot
// slots have scores (indexed_scores.cuh).
template <int32_t kTopK, int32_t kHotSize, int32_t kThreads, bool kAged>
class IndexedResolver {
 public:
  // block_shift: log2 of the block size, or kNone if it has none.
  __device__ IndexedResolver(const SwapInParams& p, const StepPlan& plan, bool writes_plan,
                             int32_t block_shift, const IndexedTables& tables, int32_t row,
                             bool writes)
      : p_(p),
        plan_(plan),
        t_(tables),
        block_shift_(block_shift),
        writes_plan_(writes_plan),
        writes_(writes),
        row_(row),
        topk_(p.topk + int64_t{row} * top_k()),
        hot_indices_(p.hot_indices + int64_t{row} * top_k()) {}

  // Clears tables; reads nothing.
  __device__ void Clear();
  // Phase 1: starts to read what does not depend on the request. A barrier must follow.
  __device__ void ReadPositions();
  // Then the rest, without waiting for it.
  __device__ void ReadState(int32_t region);
  // Phases 2 and 3. False: the order is damaged, and nothing but outputs was written. All threads
  // of all blocks of the cluster, which have read the state when they come back.
  __device__ bool FindMissing();
  // Phase 4.
  __device__ void Resolve();
  // Phase 5, by the block that writes.
  __device__ void Place();

  // After FindMissing(): what the m-th miss asks for if no two missing positions ask for the same;
  // Resolve() says whether they do, and whether the host pool has it.
  __device__ int32_t missing() const { return missing_; }
  __device__ int32_t slot(int32_t q) const { return Shared<int32_t>(t_.slot)[q]; }
  __device__ bool repeats() const { return repeats_; }

  // The step's misses: for m in [0, misses()) the host row source(m), kNone for zeros, goes to the
  // hot row hot_row(m). In every block after Resolve().
  __device__ int32_t misses() const { return misses_; }
  __device__ int32_t source(int32_t m) const { return Shared<int32_t>(t_.slot)[OriginOf(m)]; }
  __device__ int32_t hot_row(int32_t m) const { return base_ + Shared<uint16_t>(t_.victim)[m]; }
  // Puts the misses into the order of their host rows, roughly: address(i) is the miss that is i-th.
  // All threads, once everything is placed: other tables make room.
  __device__ void SortByAddress();
  __device__ int32_t address(int32_t i) const { return Shared<uint16_t>(t_.position)[i]; }

  // What was counted, lane c counter c, once everything is placed. All lanes of a warp of the block
  // that writes.
  __device__ int64_t Count() const;

 private:
  // In `words`: [0] is the caller's.
  static constexpr int32_t kOrderSum = 1;
  static constexpr int32_t kDropped = 2;  // 1 + hot slot that owned the newest slot
  static constexpr int32_t kTally = 3;    // newest positions in the upper half, invalid ones below
  static constexpr int32_t kFlags = 4;    // of missing positions: the two below
  static constexpr int32_t kRepeats = 1;  // two have one slot
  static constexpr int32_t kDoubted = 2;  // one has no source, or it must be looked up
  static constexpr int32_t kWordsUsed = 5;
  static constexpr int32_t kFree = kNone;  // in table
  // Words of 32 that a warp takes at a time, a lane one element of each: their loads are in flight
  // together.
  static constexpr int32_t kWords = 2;       // of positions
  static constexpr int32_t kOrderWords = 4;  // of order entries
  // Each warp has exactly these, and no word is cut short.
  static constexpr bool kExact = kThreads > 0 && kTopK == kThreads * kWords &&
                                 kHotSize == kThreads * kOrderWords;
  static constexpr bool kBulk = kExact && kHasBulkCopies;

  __device__ static constexpr int32_t Divide(int32_t a, int32_t b) { return (a + b - 1) / b; }
  __device__ int32_t top_k() const { return kTopK > 0 ? kTopK : t_.top_k; }
  __device__ int32_t hot_size() const { return kHotSize > 0 ? kHotSize : t_.hot_size; }
  __device__ int32_t threads() const { return kThreads > 0 ? kThreads : ThreadCount(); }
  __device__ int32_t warps() const { return threads() / kWarpThreads; }
  // This warp's words of positions: [first_word, end_word).
  __device__ int32_t position_words() const { return Divide(top_k(), kWarpThreads); }
  __device__ int32_t words_of_warp() const { return Divide(position_words(), warps()); }
  __device__ int32_t first_word() const { return Warp() * words_of_warp(); }
  __device__ int32_t end_word() const {
    return kExact ? first_word() + kWords
                  : min(first_word() + words_of_warp(), position_words());
  }
  // And of order entries.
  __device__ int32_t order_words() const { return Divide(hot_size(), kWarpThreads); }
  __device__ int32_t order_words_of_warp() const { return Divide(order_words(), warps()); }
  __device__ int32_t first_order_word() const { return Warp() * order_words_of_warp(); }
  __device__ int32_t end_order_word() const {
    return kExact ? first_order_word() + kOrderWords
                  : min(first_order_word() + order_words_of_warp(), order_words());
  }

  __device__ RegionIndex index() const {
    return RegionIndex(Shared<uint16_t>(t_.index), Shared<int32_t>(t_.owner), hot_size(),
                       t_.buckets);
  }
  __device__ int32_t* words() const { return Shared<int32_t>(t_.words); }
  // The missing position that miss m stands for, and the miss that missing position q asks for.
  __device__ int32_t OriginOf(int32_t m) const {
    return repeats_ ? Shared<uint16_t>(t_.origin)[m] : m;
  }
  __device__ int32_t MissOf(int32_t q) const {
    return repeats_ ? Shared<uint16_t>(t_.miss)[Shared<uint16_t>(t_.first)[q]] : q;
  }

  template <typename T>
  __device__ void LoadImage(T* image, const T* from, int32_t count) const;
  __device__ bool BuildIndex();
  __device__ void LoadValues(int32_t first);
  __device__ void FindSlots();
  __device__ int32_t FindPart(int32_t first);
  __device__ int32_t FindAll();
  __device__ void Answer(int32_t word, int32_t slot, int32_t hot_slot);

  // Order entries of kOrderWords words, as one lane sees them.
  struct OrderPart {
    uint32_t hot_slot[kOrderWords];
    uint32_t hits[kOrderWords];  // of the whole word
    __device__ int32_t CountHits() const {
      int32_t count = 0;
#pragma unroll
      for (int32_t k = 0; k < kOrderWords; ++k) count += __popc(hits[k]);
      return count;
    }
  };
  __device__ OrderPart ReadOrder(int32_t first) const;
  __device__ void CheckOrder(int32_t first, const OrderPart& part, uint32_t* largest,
                             uint32_t* sum) const;
  __device__ void ListMissing(int32_t missing_before);
  __device__ int32_t NoteMissing();
  __device__ bool EnterMissing(int32_t q);
  __device__ void NumberFirsts();
  __device__ void FindSources();
  // Where an entry of the order goes; `draw` is its rank among the victims, kNone if it is none.
  struct Move {
    int32_t to, draw;
  };
  // What older entries of the order were: hits, and (kAged) evictables below and at the limit.
  struct Older {
    int32_t hits, below, at;
  };
  template <typename Function>
  __device__ void ForEachMove(const Function& function);
  __device__ void ListVictims();
  __device__ void Reorder();
  // indexed_scores.cuh
  __device__ void ClearScores();
  __device__ void AgeScores();
  __device__ void ChooseVictims();
  __device__ int32_t DrawByScore(uint32_t hot_slot, bool is_evictable, Older* older,
                                 int32_t* drawn_before) const;
  __device__ void DropNewest();
  __device__ void PlaceMisses();

  // Bijective, as a value and its product with an even number are: two instructions a term of a sum.
  __host__ __device__ static constexpr uint32_t Mix(uint32_t value) {
    return value * (value * 0x9e3779b2u + 1);
  }
  __host__ __device__ static constexpr uint32_t MixOfAll(uint32_t end) {
    uint32_t sum = 0;
    for (uint32_t value = 0; value < end; ++value) sum += Mix(value);
    return sum;
  }

  const SwapInParams& p_;
  const StepPlan& plan_;
  const IndexedTables& t_;
  const int32_t block_shift_;
  const bool writes_plan_, writes_;
  const int32_t row_;
  const int32_t* const topk_;
  int32_t* const hot_indices_;
  int32_t region_ = 0, base_ = 0;
  int32_t hits_ = 0, missing_ = 0, misses_ = 0;
  int32_t newest_ = kNone;
  bool builds_ = false;   // the index is made anew in this step
  bool repeats_ = false;  // two missing positions have one slot
  Older older_ = {0, 0, 0};  // than the warp's part of the order
  // kAged: evictables below the limit are drawn, and so many of those that are at it.
  int32_t limit_ = 0, drawn_at_limit_ = 0;
  // Of the part of the positions, and of the order, that the warp works on.
  int32_t slots_[kWords];
  uint32_t missing_lanes_[kWords];
  OrderPart order_;
};

#define KVTIER_RESOLVER template <int32_t kTopK, int32_t kHotSize, int32_t kThreads, bool kAged>
#define KVTIER_RESOLVER_OF IndexedResolver<kTopK, kHotSize, kThreads, kAged>

// --- Phase 1 -----------------------------------------------------------------

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Clear() {
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  for (int32_t i = Thread(); i < Divide(hot_size(), 16); i += threads()) {
    Shared<uint4>(t_.is_hit)[i] = zeros;
  }
  const uint4 ones = make_uint4(~0u, ~0u, ~0u, ~0u);  // kFree
  for (int32_t i = Thread(); i < t_.table_entries / 4; i += threads()) {
    Shared<uint4>(t_.table)[i] = ones;
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
      slots_[k] =
          ResolveSlot(blocks, p_.shape.max_blocks, p_.shape.block_size, length, slots_[k]);
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
    slots_[k] = static_cast<uint32_t>(found[k]) < block_end ? found[k] << block_shift_ | offset
                                                            : kNone;
  }
}

KVTIER_RESOLVER template <typename T>
__device__ inline void KVTIER_RESOLVER_OF::LoadImage(T* image, const T* from,
                                                     int32_t count) const {
  constexpr int32_t kVector = 16 / sizeof(T);
  if (count % kVector == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    for (int32_t i = Thread() * kVector; i < count; i += threads() * kVector) {
      CopyAsync<16>(image + i, from + i);
    }
    return;
  }
  for (int32_t i = Thread(); i < count; i += threads()) image[i] = LoadRelaxed(from + i);
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ReadState(int32_t region) {
  region_ = region;
  base_ = region * p_.shape.region_stride;
  const int64_t first = int64_t{region} * hot_size();
  const uint16_t* const index = p_.state.index + int64_t{region} * t_.index_length;
  const int32_t* const owner = p_.state.owner + first;
  const int16_t* const order = p_.state.lru + first;
  if constexpr (kBulk) {
    if (Thread() == 0) {
      auto* const barrier = Shared<uint64_t>(t_.barrier);
      ExpectBulkBytes(barrier, 2 * t_.index_length + (kAged ? 7 : 6) * kHotSize);
      CopyBulkAsync(Shared<uint16_t>(t_.index), index, 2 * t_.index_length, barrier);
      CopyBulkAsync(Shared<int32_t>(t_.owner), owner, 4 * kHotSize, barrier);
      CopyBulkAsync(Shared<int16_t>(t_.order), order, 2 * kHotSize, barrier);
      if constexpr (kAged) {
        CopyBulkAsync(Shared<uint8_t>(t_.score), p_.state.score + first, kHotSize, barrier);
      }
    }
  } else {
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
  for (int32_t h = Thread(); h < hot_size(); h += threads()) {
    if (owner[h] >= 0) complete &= index().Insert(h, owner[h], nullptr);
  }
  __syncthreads();
  for (int32_t h = Thread(); h < hot_size(); h += threads()) {
    if (owner[h] >= 0) complete &= index().Find(owner[h]) == h;
  }
  return __syncthreads_and(complete) != 0;
}

// --- Phase 2 -----------------------------------------------------------------

// Outputs and bookkeeping for a position whose slot `hot_slot` owns, if any does.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Answer(int32_t word, int32_t slot,
                                                                  int32_t hot_slot) {
  const int32_t position = word * kWarpThreads + Lane();
  const bool exists = kExact || position < top_k();
  const bool is_lookup = slot >= 0 && slot != newest_;
  if (hot_slot >= 0) Shared<uint8_t>(t_.is_hit)[hot_slot] = 1;
  if (!writes_) return;
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

// --- Phase 3 -----------------------------------------------------------------

KVTIER_RESOLVER __device__ inline typename KVTIER_RESOLVER_OF::OrderPart
KVTIER_RESOLVER_OF::ReadOrder(int32_t first) const {
  OrderPart part;
#pragma unroll
  for (int32_t k = 0; k < kOrderWords; ++k) {
    const int32_t i = (first + k) * kWarpThreads + Lane();
    const bool exists = kExact || (first + k < end_order_word() && i < hot_size());
    part.hot_slot[k] = exists ? Shared<uint16_t>(t_.order)[i] : 0;
    const auto last = static_cast<uint32_t>(hot_size() - 1);
    const bool is_hit = exists && Shared<uint8_t>(t_.is_hit)[min(part.hot_slot[k], last)] != 0;
    part.hits[k] = __ballot_sync(kAllLanes, is_hit);
  }
  return part;
}

// Adds the entries to what the whole order is judged by.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::CheckOrder(int32_t first,
                                                                      const OrderPart& part,
                                                                      uint32_t* largest,
                                                                      uint32_t* sum) const {
#pragma unroll
  for (int32_t k = 0; k < kOrderWords; ++k) {
    const int32_t i = (first + k) * kWarpThreads + Lane();
    if (!kExact && (first + k >= end_order_word() || i >= hot_size())) continue;
    *largest = max(*largest, part.hot_slot[k]);
    *sum += Mix(part.hot_slot[k]);
    if constexpr (!kExact) *sum -= Mix(static_cast<uint32_t>(i));
  }
}

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

// --- Phase 4 -----------------------------------------------------------------

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
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    if (EnterMissing(q)) flags |= kRepeats;
    const int32_t slot = Shared<int32_t>(t_.slot)[q];
    const bool is_tracked = p_.tracking.backed_generation != nullptr;
    if (is_tracked || slot >= p_.shape.slot_count) flags |= kDoubted;
    if (!is_tracked || slot >= p_.shape.slot_count) continue;
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
  for (int32_t start = Warp() * kWarpThreads; start < missing_; start += threads()) {
    const int32_t q = start + Lane();
    if (q < missing_) {
      first[q] = static_cast<uint16_t>(Shared<int32_t>(t_.table)[first[q]]);
    }
    const uint32_t lanes = __ballot_sync(kAllLanes, q < missing_ && first[q] == q);
    if (Lane() == 0) firsts[start / kWarpThreads] = lanes;
  }
  __syncthreads();
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    if (first[q] != q) continue;
    int32_t m = __popc(firsts[q / kWarpThreads] & ((1u << q % kWarpThreads) - 1));
    for (int32_t w = 0; w < q / kWarpThreads; ++w) m += __popc(firsts[w]);
    Shared<uint16_t>(t_.miss)[q] = static_cast<uint16_t>(m);
    Shared<uint16_t>(t_.origin)[m] = static_cast<uint16_t>(q);
  }
  misses_ = 0;
  for (int32_t w = 0; w < Divide(missing_, kWarpThreads); ++w) misses_ += __popc(firsts[w]);
}

// Misses whose bytes are not in the host pool lose their slot. By the threads that started to read
// the generations.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::FindSources() {
  WaitForCopies();
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    int32_t* const slot = Shared<int32_t>(t_.slot) + q;
    Counter refusal;
    if (*slot >= p_.shape.slot_count) {
      refusal = Counter::kUnsourced;
      // Whoever published a generation wrote the bytes before; they are read after these loads.
    } else if (p_.tracking.backed_generation != nullptr &&
               Shared<int32_t>(t_.backed)[q] != Shared<int32_t>(t_.current)[q]) {
      refusal = Counter::kUnbackedReads;
    } else {
      continue;
    }
    *slot = kNone;
    const bool is_miss = !repeats_ || Shared<uint16_t>(t_.first)[q] == q;
    if (writes_ && is_miss) BlockCounts(Shared<int32_t>(t_.counts)).Add(refusal, 1);
  }
}

// Evictables that stay, then those that this step's misses draw, then the hits. Calls function(hot
// slot, move) for the warp's entries of the order.
KVTIER_RESOLVER template <typename Function>
__device__ inline void KVTIER_RESOLVER_OF::ForEachMove(const Function& function) {
  const int32_t evictables = hot_size() - hits_;
  Older older = older_;
  for (int32_t first = first_order_word(); first < end_order_word(); first += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(first);
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      const int32_t i = (first + k) * kWarpThreads + Lane();
      const bool exists = kExact || (first + k < end_order_word() && i < hot_size());
      const bool is_hit = (part.hits[k] >> Lane() & 1) != 0;
      const int32_t older_hits = older.hits + __popc(part.hits[k] & LanesBelow());
      older.hits += __popc(part.hits[k]);
      const int32_t rank = i - older_hits;  // among the evictables, if it is one
      Move move = {evictables + older_hits, kNone};
      if constexpr (kAged) {
        int32_t drawn_before = 0;
        if (misses_ > 0) {
          move.draw = DrawByScore(part.hot_slot[k], exists && !is_hit, &older, &drawn_before);
        }
        if (!is_hit) move.to = move.draw < 0 ? rank - drawn_before : evictables - misses_ + move.draw;
      } else if (!is_hit) {
        move.draw = rank < misses_ ? rank : kNone;
        move.to = rank < misses_ ? evictables - misses_ + rank : rank - misses_;
      }
      if (exists) function(part.hot_slot[k], move);
    }
    if constexpr (kExact) break;
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ListVictims() {
  auto* const victim = Shared<uint16_t>(t_.victim);
  ForEachMove([victim](uint32_t hot_slot, const Move& move) {
    if (move.draw >= 0) victim[move.draw] = static_cast<uint16_t>(hot_slot);
  });
}

KVTIER_RESOLVER __device__ inline bool KVTIER_RESOLVER_OF::FindMissing() {
  KV_MARK(3);
  if constexpr (kBulk) {
    WaitForBulkCopies(Shared<uint64_t>(t_.barrier));
  } else {
    WaitForCopies();
    __syncthreads();
  }
  KV_MARK(4);
  ArriveAtCluster();
  builds_ = !index().IsUsable();
  if (builds_ && !BuildIndex()) return false;

  const int32_t missing_of_warp = FindAll();
  if (newest_ >= 0 && Thread() == 0) words()[kDropped] = 1 + index().Find(newest_);
  if (Lane() == 0) {
    Shared<uint32_t>(t_.warp_sums)[Warp()] = static_cast<uint32_t>(missing_of_warp);
  }
  KV_MARK(5);
  __syncthreads();
  KV_MARK(6);

  const uint32_t missing_of_lane = Lane() < warps() ? Shared<uint32_t>(t_.warp_sums)[Lane()] : 0;
  missing_ = static_cast<int32_t>(__reduce_add_sync(kAllLanes, missing_of_lane));
  misses_ = missing_;
  if (missing_ > 0) {
    const uint32_t before =
        __reduce_add_sync(kAllLanes, Lane() < Warp() ? missing_of_lane : 0);
    ListMissing(static_cast<int32_t>(before));
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
  KV_MARK(7);
  constexpr uint32_t kSoundSum = kExact ? MixOfAll(kHotSize) : 0;
  const bool in_range = __syncthreads_and(largest < static_cast<uint32_t>(hot_size())) != 0;
  return in_range && static_cast<uint32_t>(words()[kOrderSum]) == kSoundSum;
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Resolve() {
  const uint32_t hits_of_lane = Lane() < warps() ? Shared<uint32_t>(t_.warp_hits)[Lane()] : 0;
  hits_ = static_cast<int32_t>(__reduce_add_sync(kAllLanes, hits_of_lane));
  older_.hits = static_cast<int32_t>(
      __reduce_add_sync(kAllLanes, Lane() < Warp() ? hits_of_lane : 0));
  KV_MARK(8);
  if (missing_ == 0) return;
  const int32_t flags_of_warp =
      static_cast<int32_t>(__reduce_or_sync(kAllLanes, static_cast<uint32_t>(NoteMissing())));
  if (Lane() == 0 && flags_of_warp != 0) atomicOr(words() + kFlags, flags_of_warp);
  if constexpr (!kAged) ListVictims();
  __syncthreads();
  const int32_t flags = words()[kFlags];
  repeats_ = (flags & kRepeats) != 0;
  if (repeats_) NumberFirsts();
  if constexpr (kAged) {
    if (writes_) WaitForCluster();
    AgeScores();
    ChooseVictims();
    ListVictims();
  }
  if ((flags & kDoubted) != 0) FindSources();
  if (kAged || flags != 0) __syncthreads();
  KV_MARK(9);
}

// --- Phase 5 -----------------------------------------------------------------

// The newest row is being rewritten, so a copy of what was there before is stale.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::DropNewest() {
  const int32_t dropped = words()[kDropped];
  if (dropped == 0) return;
  if (Thread() == 0) {
    Shared<int32_t>(t_.owner)[dropped - 1] = kNone;
    StoreRelaxed(p_.state.owner + int64_t{region_} * hot_size() + dropped - 1, kNone);
  }
  __syncthreads();
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::PlaceMisses() {
  int32_t* const owner = p_.state.owner + int64_t{region_} * hot_size();
  const int64_t plan_start = PlanStart(plan_.units == nullptr ? row_ : region_, top_k());
  BlockCounts counts(Shared<int32_t>(t_.counts));
  for (int32_t start = 0; start < misses_; start += threads()) {
    const int32_t m = start + Thread();
    bool evicts = false;
    if (m < misses_) {
      const int32_t hot_slot = Shared<uint16_t>(t_.victim)[m], from = source(m);
      evicts = Shared<int32_t>(t_.owner)[hot_slot] >= 0;
      Shared<int32_t>(t_.owner)[hot_slot] = from;
      StoreRelaxed(owner + hot_slot, from);
      if constexpr (kAged) {
        StoreRelaxed(p_.state.score + int64_t{region_} * hot_size() + hot_slot,
                     from < 0 ? kNoScore : kMissScore);
      }
      if (p_.miss_mask != nullptr && from >= 0) {
        const int32_t position = Shared<uint16_t>(t_.position)[OriginOf(m)];
        p_.miss_mask[int64_t{row_} * top_k() + position] = 1;
      }
      if (writes_plan_) {
        plan_.slots[plan_start + m] = from;
        plan_.hot_rows[plan_start + m] = base_ + hot_slot;
      }
    }
    counts.CountLanes(Counter::kEvictions, evicts);
  }
  for (int32_t q = Thread(); q < missing_; q += threads()) {
    hot_indices_[Shared<uint16_t>(t_.position)[q]] = hot_row(MissOf(q));
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Reorder() {
  int16_t* const lru = p_.state.lru + int64_t{region_} * hot_size();
  ForEachMove([lru](uint32_t hot_slot, const Move& move) {
    StoreRelaxed(lru + move.to, static_cast<int16_t>(hot_slot));
  });
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Place() {
  if (!kAged || missing_ == 0) WaitForCluster();
  if constexpr (kAged) {
    if (missing_ == 0) AgeScores();
  }
  Reorder();
  DropNewest();
  uint16_t* const copy = p_.state.index + int64_t{region_} * t_.index_length;
  bool complete = true;
  if (misses_ > 0) {
    PlaceMisses();
    __syncthreads();
    for (int32_t m = Thread(); m < misses_; m += threads()) {
      const int32_t from = source(m);
      if (from < 0) continue;
      complete &= index().Insert(Shared<uint16_t>(t_.victim)[m], from, builds_ ? nullptr : copy);
    }
  }
  if (misses_ > 0 || builds_) {
    complete = __syncthreads_and(complete) != 0;
    if (builds_) {
      for (int32_t i = Thread() + kIndexHeaderWords; i < t_.index_length; i += threads()) {
        copy[i] = Shared<uint16_t>(t_.index)[i];
      }
    }
    if (Thread() == 0) {
      if (complete) {
        RegionIndex::SetComplete(copy, misses_ + (builds_ ? 0 : index().inserted()));
      } else {
        RegionIndex::Forget(copy);
      }
    }
  }
  if (Thread() != 0) return;
  if (p_.valid_counts != nullptr) p_.valid_counts[row_] = top_k() - (words()[kTally] & 0xffff);
  if (!writes_plan_) return;
  plan_.counts[row_] = misses_;
  if (plan_.units != nullptr) plan_.units[row_] = region_;
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

// A counting sort by the upper bits of the slot. Within a bucket the order is whatever it is: it
// decides when a row is copied, not where to.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::SortByAddress() {
  constexpr int32_t kBuckets = 512;
  auto* const starts = Shared<int32_t>(t_.index);  // what was there is of no use any more
  const int32_t shift = max(23 - __clz(max(p_.shape.slot_count - 1, 1)), 0);
  const auto bucket_of = [&](int32_t m) { return min(max(source(m), 0) >> shift, kBuckets - 1); };
  __syncthreads();
  for (int32_t b = Thread(); b < kBuckets; b += threads()) starts[b] = 0;
  __syncthreads();
  for (int32_t m = Thread(); m < misses_; m += threads()) atomicAdd(starts + bucket_of(m), 1);
  __syncthreads();
  // One warp adds up: a lane has kBuckets / 32 neighbours.
  if (Warp() == 0) {
    constexpr int32_t kOfLane = kBuckets / kWarpThreads;
    int32_t sum = 0;
    for (int32_t k = 0; k < kOfLane; ++k) sum += starts[Lane() * kOfLane + k];
    int32_t before = InclusiveWarpSum(sum) - sum;
    for (int32_t k = 0; k < kOfLane; ++k) {
      const int32_t count = starts[Lane() * kOfLane + k];
      starts[Lane() * kOfLane + k] = before;
      before += count;
    }
  }
  __syncthreads();
  for (int32_t m = Thread(); m < misses_; m += threads()) {
    Shared<uint16_t>(t_.position)[atomicAdd(starts + bucket_of(m), 1)] = static_cast<uint16_t>(m);
  }
  __syncthreads();
}

}  // namespace kvtier::cuda

#include "kernels/cuda/indexed_scores.cuh"

#undef KVTIER_RESOLVER
#undef KVTIER_RESOLVER_OF
