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
  // the index is no longer complete. All lanes of a warp: kIndexBucketSlots neighbours have one hot
  // slot between them, which may be kNone, and look at a place each.
  __device__ bool Insert(int32_t hot_slot, int32_t slot, uint16_t* copy) const {
    const uint32_t hash = Hash(slot);
    auto bucket = static_cast<int32_t>(hash >> shift_);
    const int32_t first_lane = Lane() / kIndexBucketSlots * kIndexBucketSlots;
    bool is_open = hot_slot >= 0, has_failed = false;
    for (int32_t probe = 0; __any_sync(kAllLanes, is_open) != 0;) {
      const int32_t place = bucket * kIndexBucketSlots + Lane() - first_lane;
      const uint32_t there = LoadRelaxed(hot_slots() + place);
      const bool is_free = there == static_cast<uint32_t>(hot_slot) || !IsInUse(there, bucket);
      const uint32_t free = OfBucket(__ballot_sync(kAllLanes, is_open && is_free), first_lane);
      const bool takes = free != 0 && first_lane + __ffs(static_cast<int32_t>(free)) - 1 == Lane();
      const bool has_taken =
          takes && Take(place, there, static_cast<uint16_t>(hot_slot), Tag(hash), copy);
      if (OfBucket(__ballot_sync(kAllLanes, has_taken), first_lane) != 0) {
        is_open = false;
      } else if (is_open && free == 0) {
        bucket = (bucket + 1) & mask_;
        has_failed = ++probe == kProbesMax;
        is_open = !has_failed;
      }
    }
    return !has_failed;
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

  // What the lanes from `first_lane` on, which have a bucket between them, voted.
  static __device__ uint32_t OfBucket(uint32_t votes, int32_t first_lane) {
    return votes >> first_lane & ((1u << kIndexBucketSlots) - 1);
  }
  // Gives a place where `there` is to `hot_slot`. False: another one was faster.
  __device__ bool Take(int32_t place, uint32_t there, uint16_t hot_slot, uint32_t tag,
                       uint16_t* copy) const {
    const auto before = static_cast<uint16_t>(there);
    if (atomicCAS(hot_slots() + place, before, hot_slot) != before) return false;
    TagsOf(words_)[place] = static_cast<uint8_t>(tag);
    if (copy != nullptr) {
      StoreRelaxed(TagsOf(copy) + place, static_cast<uint8_t>(tag));
      StoreRelaxed(copy + HotSlotsAt() + place, hot_slot);
    }
    return true;
  }
  // A search for the owner of `hot_slot` may come by this bucket.
  __device__ bool IsInUse(uint32_t hot_slot, int32_t bucket) const {
    if (hot_slot >= static_cast<uint32_t>(hot_size_)) return false;
    const int32_t owner = owner_[hot_slot];
    const auto home = static_cast<int32_t>(Hash(owner) >> shift_);
    return owner >= 0 && ((bucket - home) & mask_) < kProbesMax;
  }

  uint16_t* const words_;
  const int32_t* const owner_;
  const int32_t hot_size_;
  const int32_t mask_, shift_;
};

}  // namespace kvtier::cuda
