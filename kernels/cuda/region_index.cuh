// Which hot slot owns a slot: the index of one region, in shared memory while a block works on it.
//
// An open-addressing table of buckets of eight; a search goes on to the next bucket only past a
// full one. A place holds a hot slot and a tag, eight bits of the hash of the slot it was put
// there for; 0 is empty. Nothing is ever taken out: the owner of a hot slot is the truth, and a
// place whose hot slot has another owner by now is there for the next one. So whoever drops an
// owner (invalidation, a backup) need not know of the index, and all that must hold is
//
//   every owned hot slot is found by a search for its owner,
//
// which Insert() of every new owner keeps up. A region whose first word is not kComplete promises
// nothing: it is built anew from the owners.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/region_index.h"

namespace kvtier::cuda {

class RegionIndex {
 public:
  // `words` [RegionIndexLength(hot_size)] and `owner` [hot_size] in shared memory.
  __device__ RegionIndex(uint16_t* words, const int32_t* owner, int32_t hot_size, int32_t buckets)
      : words_(words),
        owner_(owner),
        hot_size_(hot_size),
        mask_(buckets - 1),
        shift_(ShiftFor(buckets)) {}

  // True if the index can be searched, and isn't so old that its buckets are crowded with hot slots
  // that have lost their owners.
  __device__ bool IsUsable() const {
    return words_[kState] == kComplete && inserted() < kInsertsMax * hot_size_;
  }

  // --- A search, in steps so that several can be under way. Not while others insert.
  struct Search {
    int32_t bucket;
    uint32_t pattern;  // the tag, four times
    uint32_t matches;  // places of the bucket that have it: see Matches()
    bool is_full;      // the bucket
  };
  __device__ Search Start(int32_t slot) const {
    const uint32_t hash = Hash(slot);
    Search search;
    search.bucket = static_cast<int32_t>(hash >> shift_);
    search.pattern = Tag(hash) * 0x01010101u;
    LoadTags(&search);
    return search;
  }
  // The hot slot of the first place that matches; if there is none, of whichever. Not yet known to
  // own the slot.
  __device__ int32_t Candidate(const Search& search) const {
    const int32_t bit = __ffs(static_cast<int32_t>(search.matches)) - 1;
    const int32_t place = (bit >> 3 & 3) | (bit & 4);
    return min(int32_t{hot_slots()[search.bucket * kIndexBucketSlots + place]}, hot_size_ - 1);
  }
  __device__ bool Owns(int32_t hot_slot, int32_t slot) const { return owner_[hot_slot] == slot; }
  // Whether somebody else than the candidate may own the slot.
  __device__ static bool MayGoOn(const Search& search) {
    return (search.matches & (search.matches - 1)) != 0 || search.is_full;
  }
  // The hot slot that owns `slot`, or kNone.
  __device__ int32_t Finish(Search search, int32_t slot) const {
    for (int32_t probe = 0; probe < kProbesMax; ++probe) {
      for (; search.matches != 0; search.matches &= search.matches - 1) {
        const int32_t hot_slot = Candidate(search);
        if (Owns(hot_slot, slot)) return hot_slot;
      }
      if (!search.is_full) return kNone;
      search.bucket = (search.bucket + 1) & mask_;
      LoadTags(&search);
    }
    return kNone;
  }
  __device__ int32_t Find(int32_t slot) const { return Finish(Start(slot), slot); }

  // Puts `hot_slot` there for its owner `slot` (>= 0), which owner[] names already. It also goes to
  // `copy`, the same index in device memory, unless that is null. False: there was no place, and
  // the index is no longer complete. Looks at all places of a bucket side by side: one after the
  // other, each would wait for shared memory twice.
  __device__ bool Insert(int32_t hot_slot, int32_t slot, uint16_t* copy) const {
    const uint32_t hash = Hash(slot);
    auto bucket = static_cast<int32_t>(hash >> shift_);
#pragma unroll 1
    for (int32_t probe = 0; probe < kProbesMax;) {
      auto* const pairs = reinterpret_cast<uint32_t*>(hot_slots() + bucket * kIndexBucketSlots);
      uint32_t there[kIndexBucketSlots / 2];  // two hot slots each
#pragma unroll
      for (int32_t k = 0; k < kIndexBucketSlots / 2; ++k) there[k] = LoadRelaxed(pairs + k);
      uint32_t free = 0;
#pragma unroll
      for (int32_t place = 0; place < kIndexBucketSlots; ++place) {
        const uint32_t other = there[place / 2] >> 16 * (place % 2) & 0xffff;
        const bool is_free = other == static_cast<uint32_t>(hot_slot) || !IsInUse(other, bucket);
        free |= is_free ? 1u << place : 0;
      }
      if (free == 0) {
        bucket = (bucket + 1) & mask_;
        ++probe;
        continue;
      }
      const int32_t place = __ffs(static_cast<int32_t>(free)) - 1;
      const uint32_t low = place < 2 ? there[0] : there[1];
      const uint32_t high = place < 6 ? there[2] : there[3];
      const uint32_t pair = place < 4 ? low : high;
      const int32_t shift = 16 * (place % 2);
      const uint32_t with_mine = (pair & ~(0xffffu << shift)) | static_cast<uint32_t>(hot_slot)
                                                                    << shift;
      // If another thread was faster with one of the two, this one looks again.
      if (atomicCAS(pairs + place / 2, pair, with_mine) != pair) continue;
      Store(bucket * kIndexBucketSlots + place, static_cast<uint16_t>(hot_slot), Tag(hash), copy);
      return true;
    }
    return false;
  }

  // Makes it empty, by all threads of the block.
  __device__ void Clear() const {
    const int32_t places = (mask_ + 1) * kIndexBucketSlots;
    for (int32_t i = Thread(); i < places; i += ThreadCount()) {
      TagsOf(words_)[i] = 0;
      hot_slots()[i] = kNobody;
    }
  }

  // --- The header. By one thread, of the image or of the index in device memory.
  static __device__ void Forget(uint16_t* words) { StoreRelaxed(words + kState, uint16_t{0}); }
  static __device__ void SetComplete(uint16_t* words, int32_t inserted) {
    StoreRelaxed(reinterpret_cast<int32_t*>(words + kInserted), inserted);
    StoreRelaxed(words + kState, kComplete);
  }
  __device__ int32_t inserted() const {
    return *reinterpret_cast<const int32_t*>(words_ + kInserted);
  }

 private:
  static constexpr int32_t kState = 0, kInserted = 2;  // header words; the second is two of them
  static constexpr uint16_t kComplete = 0x6b76;
  static constexpr uint16_t kNobody = 0xffff;
  // Full buckets that a search passes. With two owned hot slots a bucket on average, one is rare.
  static constexpr int32_t kProbesMax = 16;
  // Times the hot size, until the index is built anew.
  static constexpr int32_t kInsertsMax = 8;

  // Leaves the upper log2(buckets) bits.
  static __device__ int32_t ShiftFor(int32_t buckets) { return __clz(buckets) + 1; }
  static __device__ uint32_t Hash(int32_t slot) {
    uint32_t hash = static_cast<uint32_t>(slot) * 0x9e3779b1u;
    hash ^= hash >> 15;
    return hash * 0x85ebca6bu;
  }
  // From hash bits that do not choose the bucket; never 0.
  static __device__ uint32_t Tag(uint32_t hash) { return max(hash & 0xff, 1u); }

  static __device__ uint8_t* TagsOf(uint16_t* words) {
    return reinterpret_cast<uint8_t*>(words + kIndexHeaderWords);
  }
  __device__ int32_t HotSlotsAt() const {
    return kIndexHeaderWords + (mask_ + 1) * kIndexBucketSlots / 2;
  }
  __device__ uint16_t* hot_slots() const { return words_ + HotSlotsAt(); }

  // Of the search's bucket. The first half of the tags has bits 0, 8, 16 and 24 of the matches, the
  // second half bits 4 to 28. What is above a match of its half may be wrong, and is verified.
  __device__ void LoadTags(Search* search) const {
    const uint2 tags =
        *reinterpret_cast<const uint2*>(TagsOf(words_) + search->bucket * kIndexBucketSlots);
    search->matches =
        ZeroBytes(tags.x ^ search->pattern) >> 7 | ZeroBytes(tags.y ^ search->pattern) >> 3;
    search->is_full = tags.y >> 24 != 0;
  }
  static __device__ uint32_t ZeroBytes(uint32_t bytes) {
    return (bytes - 0x01010101u) & ~bytes & 0x80808080u;
  }

  // What belongs to a place that has `hot_slot`.
  __device__ void Store(int32_t place, uint16_t hot_slot, uint32_t tag, uint16_t* copy) const {
    TagsOf(words_)[place] = static_cast<uint8_t>(tag);
    if (copy == nullptr) return;
    StoreRelaxed(TagsOf(copy) + place, static_cast<uint8_t>(tag));
    StoreRelaxed(copy + HotSlotsAt() + place, hot_slot);
  }
  // A search for the owner of `hot_slot` may come by this bucket. Without a branch, so that several
  // loads are in flight together.
  __device__ bool IsInUse(uint32_t hot_slot, int32_t bucket) const {
    const auto end = static_cast<uint32_t>(hot_size_);
    const int32_t owner = owner_[min(hot_slot, end - 1)];
    const auto home = static_cast<int32_t>(Hash(owner) >> shift_);
    return hot_slot < end && owner >= 0 && ((bucket - home) & mask_) < kProbesMax;
  }

  uint16_t* const words_;
  const int32_t* const owner_;
  const int32_t hot_size_;
  const int32_t mask_, shift_;
};

}  // namespace kvtier::cuda
