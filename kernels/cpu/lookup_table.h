// A set of slots, each with a small id: what a step looks owners up in.
//
// Open addressing in buckets of four slots that are compared at once. A look-up of a slot that is
// not there is the common case (at least half of the hot slots), and with one slot a bucket on
// average 98 of 100 of them end in the first bucket: the branch that decides it is predicted, and
// the result is computed without one. Clearing writes 32 bytes a bucket, which costs less than the
// branch misses that an epoch stamp in each entry would save it.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvtier::cpu {

class LookupTable {
 public:
  // The id of slots that are not in the table.
  static constexpr int32_t kAbsent = 0;

  // Empties the table and makes room for `slot_count_max` slots.
  void Clear(int32_t slot_count_max) {
    // Between 0.75 and 1.5 slots a bucket: top_k slots and a newest one still fit top_k buckets.
    const uint32_t bucket_count_min = static_cast<uint32_t>(slot_count_max) / 3 * 2;
    bucket_bits_ = bucket_count_min < 2 ? 1 : std::bit_width(bucket_count_min - 1);
    const size_t bucket_count = size_t{1} << bucket_bits_;
    if (buckets_.size() < bucket_count) buckets_.resize(bucket_count);
    for (size_t i = 0; i < bucket_count; ++i) buckets_[i] = Bucket{};
  }

  // The id of `slot`, which may have any value; kAbsent if it was never inserted.
  int32_t Find(int32_t slot) const {
    uint32_t b = BucketOf(slot);
    for (;;) {
      const Bucket& bucket = buckets_[b];
      const uint32_t match = Match(bucket, slot);
      // Without a match lane 3 is read and masked away. An unused lane has the id kAbsent.
      const int32_t id = bucket.ids[std::countr_zero(match | 8u)] & -static_cast<int32_t>(match != 0);
      if ((match != 0) | (bucket.slots[kLanes - 1] == kUnused)) [[likely]] return id;
      b = Next(b);
    }
  }

  // The id of `slot` (>= 0), which becomes `id` (not kAbsent) if it was not in the table yet.
  int32_t FindOrInsert(int32_t slot, int32_t id) {
    uint32_t b = BucketOf(slot);
    for (;;) {
      Bucket& bucket = buckets_[b];
      const uint32_t match = Match(bucket, slot);
      if (match != 0) return bucket.ids[std::countr_zero(match)];
      const uint32_t unused = Match(bucket, kUnused);
      if (unused != 0) [[likely]] {
        const int lane = std::countr_zero(unused);  // lanes fill from 0 on
        bucket.slots[lane] = slot;
        bucket.ids[lane] = id;
        return id;
      }
      b = Next(b);
    }
  }

 private:
  static constexpr int32_t kLanes = 4;
  static constexpr int32_t kUnused = -1;

  struct alignas(32) Bucket {
    int32_t slots[kLanes] = {kUnused, kUnused, kUnused, kUnused};
    int32_t ids[kLanes] = {kAbsent, kAbsent, kAbsent, kAbsent};
  };

  // Bit i: lane i holds `slot`.
  static uint32_t Match(const Bucket& bucket, int32_t slot) {
#if defined(__SSE2__)
    const __m128i lanes = _mm_load_si128(reinterpret_cast<const __m128i*>(bucket.slots));
    const __m128i equal = _mm_cmpeq_epi32(lanes, _mm_set1_epi32(slot));
    return static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(equal)));
#else
    uint32_t match = 0;
    for (int32_t i = 0; i < kLanes; ++i) match |= uint32_t{bucket.slots[i] == slot} << i;
    return match;
#endif
  }

  // Multiplicative hashing: neighbouring slots, the common case, end far apart.
  uint32_t BucketOf(int32_t slot) const {
    return (static_cast<uint32_t>(slot) * 2654435769u) >> (32 - bucket_bits_);
  }
  // There are more lanes than slots, so the search for an unused one ends.
  uint32_t Next(uint32_t b) const { return (b + 1) & ((1u << bucket_bits_) - 1); }

  std::vector<Bucket> buckets_;
  int32_t bucket_bits_ = 1;
};

}  // namespace kvtier::cpu
