// A set of slots in shared or device memory that a block fills and then looks slots up in.
//
// Open addressing with linear probing; the index of a slot's entry numbers what callers keep
// beside it (SlotTable owns nothing but the keys). At most two thirds full, so that a search
// ends soon: about 1.5 probes for a slot that is there and 3 for one that isn't at 0.5 full.
//
//   SlotTable table(keys, SlotTable::EntriesFor(positions));
//   for (e = Thread(); e < table.entries(); e += ThreadCount()) table.Clear(e);
//   __syncthreads();
//   const int32_t entry = table.Insert(slot);   // threads may insert the same slot
//   __syncthreads();
//   if (table.Find(owner) >= 0) ...
#pragma once

#include "kernels/cuda/device.cuh"

namespace kvtier::cuda {

class SlotTable {
 public:
  // A power of two, at least half as many again as `slot_count_max` slots need.
  __host__ __device__ static constexpr int32_t EntriesFor(int32_t slot_count_max) {
    int32_t entries = kWarpThreads;
    while (entries < slot_count_max + slot_count_max / 2) entries *= 2;
    return entries;
  }

  // `entries` of EntriesFor(), or a larger power of two; keys [entries].
  __device__ SlotTable(int32_t* keys, int32_t entries)
      : keys_(keys), mask_(entries - 1), shift_(ShiftFor(entries)) {}

  __device__ int32_t entries() const { return mask_ + 1; }
  __device__ void Clear(int32_t entry) { keys_[entry] = kNone; }
  __device__ int32_t slot_of(int32_t entry) const { return keys_[entry]; }

  // The entry of `slot` (>= 0), which is in the table from now on.
  __device__ int32_t Insert(int32_t slot) {
    for (int32_t entry = First(slot);; entry = (entry + 1) & mask_) {
      const int32_t seen = atomicCAS(keys_ + entry, kNone, slot);
      if (seen == kNone || seen == slot) return entry;
    }
  }

  // The entry of `slot` (>= 0), or kNone. Not while others insert.
  __device__ int32_t Find(int32_t slot) const {
    for (int32_t entry = First(slot);; entry = (entry + 1) & mask_) {
      const int32_t seen = keys_[entry];
      if (seen == slot) return entry;
      if (seen == kNone) return kNone;
    }
  }

 private:
  // Multiplicative hashing: neighbouring slots, the common case, end far apart.
  __device__ int32_t First(int32_t slot) const {
    return static_cast<int32_t>((static_cast<uint32_t>(slot) * 2654435769u) >> shift_);
  }

  // Leaves the upper log2(entries) bits.
  static __device__ int32_t ShiftFor(int32_t entries) { return __clz(entries) + 1; }

  int32_t* keys_;
  int32_t mask_;
  int32_t shift_;
};

}  // namespace kvtier::cuda
