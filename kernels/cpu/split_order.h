// The LRU order of a region, cut into hits and the others. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

namespace kvtier::cpu {

// Notes about hot slots that any 16-bit value may index, so that an order is checked after it was
// followed and not before: an entry that is no hot slot finds notes, too, that mean nothing.
struct HotSlotNotes {
  static constexpr int32_t kCount = 1 << 16;

  // Makes room; the notes say nothing.
  void Reserve() {
    if (!hits.empty()) return;
    hits.resize(kCount);
    met.resize(kCount);
  }

  std::vector<uint8_t> hits;  // 1: a hit of this step
  std::vector<uint8_t> met;   // stamp of the last order that had it
  uint8_t stamp = 0;
};

// Up to this many entries may be written behind the end of each list.
inline constexpr int32_t kSplitSlack = 32;

// Copies the entries of `order` [hot_size], of which the first are the oldest, to `hits` where
// notes->hits is 1, else to `others`, and keeps their order. Returns the number of hits, or -1 if
// the order is no permutation of the hot slots.
// Both lists have room for hot_size + kSplitSlack entries. `lanes_max` entries are looked at side
// by side at most, which changes nothing but the time it takes: for tests.
int32_t SplitOrder(const uint16_t* order, int32_t hot_size, HotSlotNotes* notes, uint16_t* hits,
                   uint16_t* others, int32_t lanes_max = kSplitSlack);

}  // namespace kvtier::cpu
