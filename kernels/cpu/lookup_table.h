// A set of slots, each with a small id: what a step looks owners up in. Private to this folder.
//
// Open addressing in buckets of four slots that are compared at once. A look-up of a slot that is
// not there is the common case (at least half of the hot slots) and the expensive one of other
// tables; with one slot a bucket on average, 98 of 100 of them end in the first bucket here.
// Clearing writes 32 bytes a bucket: less than the larger entries and the second compare of each
// look-up that an epoch stamp would cost.
#pragma once

#include <algorithm>
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

  class View;

  // Makes room for `slot_count_max` slots, so that Clear() need not.
  void Reserve(int32_t slot_count_max) {
    const size_t bucket_count = size_t{1} << BucketBits(slot_count_max);
    if (buckets_.size() < bucket_count) buckets_.resize(bucket_count);
  }

  // Empties the table and makes room for `slot_count_max` slots. The view is good until the next
  // call, and is what the table is used through: a loop keeps it in registers.
  View Clear(int32_t slot_count_max);

 private:
  static constexpr int32_t kLanes = 4;
  static constexpr int32_t kUnused = -1;

  struct alignas(32) Bucket {
    int32_t slots[kLanes] = {kUnused, kUnused, kUnused, kUnused};
    int32_t ids[kLanes] = {kAbsent, kAbsent, kAbsent, kAbsent};
  };

  // Between 0.75 and 1.5 slots a bucket: top_k slots and a newest one still fit top_k buckets.
  static int32_t BucketBits(int32_t slot_count_max) {
    const uint32_t bucket_count_min = static_cast<uint32_t>(slot_count_max) / 3 * 2;
    return bucket_count_min < 2 ? 1 : std::bit_width(bucket_count_min - 1);
  }

  std::vector<Bucket> buckets_;
};

class LookupTable::View {
 public:
  View() = default;

  // The id of `slot`, which may have any value; kAbsent if it was never inserted. (-1 meets an
  // unused lane, whose id is kAbsent.)
  int32_t Find(int32_t slot) const {
    uint32_t b = BucketOf(slot);
    for (;;) {
      const Bucket& bucket = buckets_[b];
      const uint32_t match = Match(bucket, slot);
      if (match != 0) return bucket.ids[std::countr_zero(match)];
      if (bucket.slots[kLanes - 1] == kUnused) [[likely]]
        return kAbsent;
      b = (b + 1) & bucket_mask_;
    }
  }

  // The id of `slot` (>= 0), which becomes `id` (not kAbsent) if it was not in the table yet.
  int32_t FindOrInsert(int32_t slot, int32_t id) const {
    uint32_t b = BucketOf(slot);
    for (;;) {
      Bucket& bucket = buckets_[b];
      const uint32_t match = Match(bucket, slot);
      if (match != 0) [[unlikely]]
        return bucket.ids[std::countr_zero(match)];
      const uint32_t unused = Match(bucket, kUnused);
      if (unused != 0) [[likely]] {
        const int lane = std::countr_zero(unused);  // lanes fill from 0 on
        bucket.slots[lane] = slot;
        bucket.ids[lane] = id;
        return id;
      }
      // There are more lanes than slots, so the search for an unused one ends.
      b = (b + 1) & bucket_mask_;
    }
  }

 private:
  friend class LookupTable;
  View(Bucket* buckets, int32_t bucket_bits)
      : buckets_(buckets), shift_(32 - bucket_bits), bucket_mask_((1u << bucket_bits) - 1) {}

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
    return (static_cast<uint32_t>(slot) * 2654435769u) >> shift_;
  }

  Bucket* buckets_ = nullptr;
  int32_t shift_ = 0;
  uint32_t bucket_mask_ = 0;
};

inline LookupTable::View LookupTable::Clear(int32_t slot_count_max) {
  Reserve(slot_count_max);
  const int32_t bits = BucketBits(slot_count_max);
  std::fill_n(buckets_.begin(), size_t{1} << bits, Bucket{});
  return View(buckets_.data(), bits);
}

}  // namespace kvtier::cpu
