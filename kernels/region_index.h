// The size of a region's index: which hot slot owns a slot.
//
// An index is uint16 words in the memory of the owners: a header of kIndexHeaderWords, then 12 words
// for each of a power of two of buckets, which cuda/ and cpu/ use each in its own way: the first word
// tells whose it is, and no device runs both. Its content is private to the kernels that keep it. All
// zeros are an index that knows nothing, which is always right.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace kvtier {

// Larger regions have no index: it would not fit into the shared memory of a block of threads.
inline constexpr int32_t kIndexedHotSizeMax = 8192;
inline constexpr int32_t kIndexHeaderWords = 32;
inline constexpr int32_t kIndexBucketSlots = 8;  // a byte and a word each

// At most two hot slots a bucket on average, of eight that it holds.
KVTIER_HD constexpr int32_t RegionIndexBuckets(int32_t hot_size) {
  int32_t buckets = 4;
  while (buckets * 2 < hot_size) buckets *= 2;
  return buckets;
}

// uint16 words of one region's index, a multiple of 8; 0: it has none.
KVTIER_HD constexpr int32_t RegionIndexLength(int32_t hot_size) {
  if (hot_size > kIndexedHotSizeMax) return 0;
  return kIndexHeaderWords + RegionIndexBuckets(hot_size) * kIndexBucketSlots * 3 / 2;
}

}  // namespace kvtier
