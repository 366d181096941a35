// Which hot slot owns a slot: the index of one region, as the CPU kernels keep it. Private to this
// folder.
//
// In the words of GroupState::index (../region_index.h), behind their header: a hash table of hot
// slots, open addressing with one place after the other, a quarter full at most; then what it was
// made for, a copy of the region's owners. Both lie in memory that others can write, so neither is
// believed: every step begins with Sync(), which compares the copy with the owners themselves and
// puts right what somebody else changed (invalidation, a backup, kernels that keep no index), and
// whatever a search finds is a hot slot of the region whose copied owner is the slot asked for.
//
// Searches and changes end after one round of the table, whatever it holds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/layout.h"
#include "kernels/region_index.h"

namespace kvtier::cpu {

class OwnerIndex {
 public:
  // `words` [RegionIndexLength(hot_size)], not 0 of them; `owners` [hot_size].
  OwnerIndex(uint16_t* words, int32_t* owners, int32_t hot_size)
      : words_(words),
        owners_(owners),
        hot_size_(hot_size),
        last_(static_cast<uint32_t>(hot_size - 1)),
        mask_(PlaceCount(hot_size) - 1),
        places_(words + kIndexHeaderWords),
        copy_(reinterpret_cast<int32_t*>(places_ + PlaceCount(hot_size))) {}

  // Brings it in line with the owners, by what has changed or all of it. False: a slot is owned
  // twice or an owner is no slot, which only corruption does; the index can't be used. Until
  // Finish() nobody else would believe it: a process that dies in between leaves no half of a
  // change.
  bool Sync();
  void Finish() { SetState(is_lost_ ? kUnknown : kComplete); }

  // A hot slot that may own `slot`, and in most searches that succeed does; for any `slot` some hot
  // slot of the region.
  uint16_t Candidate(int32_t slot) const {
    return std::min(places_[Home(slot)], static_cast<uint16_t>(last_));
  }
  // The owner of a hot slot, as this index knows it.
  int32_t OwnerOf(uint32_t hot_slot) const { return copy_[hot_slot]; }

  // Candidate() of all slots of a row, and whether they own them (match_owners.cc).
  struct Matches {
    int32_t base;       // of the region's hot rows
    int32_t first;      // the position of the first slot
    int32_t* hot_rows;  // [count] base + candidate
    uint8_t* hits;      // [any uint16] becomes 1 at candidates that are owners, and at 65535
    int32_t* others;    // [count + kMatchLanes] the positions of slots that no candidate owns
  };
  static constexpr int32_t kMatchLanes = 16;
  // Returns the number of others. `lanes_max` slots are looked at side by side at most, which
  // changes nothing but the time it takes: for tests.
  int32_t Match(const int32_t* slots, int32_t count, const Matches& to,
                int32_t lanes_max = kMatchLanes) const;

  // The hot slot that owns `slot` (>= 0), or kNone.
  int32_t Find(int32_t slot) const {
    uint32_t place = Home(slot);
    for (uint32_t probe = 0; probe <= mask_; ++probe, place = Next(place)) {
      if (places_[place] == kNobody) return kNone;
      const uint32_t hot_slot = HotSlotAt(place);
      if (copy_[hot_slot] == slot) return static_cast<int32_t>(hot_slot);
    }
    return kNone;
  }

  // The second step of the search for a slot that the candidate does not own, without a branch.
  // What it finds changes places with the candidate, which is asked for less often, as a rule: so
  // that the next search ends there.
  struct Second {
    int32_t hot_slot;
    int32_t is_missing;  // 1: hot_slot doesn't own the slot
    int32_t may_go_on;   // 1: there may be more of the search, for FindAgain()
  };
  Second SearchSecond(int32_t slot) {
    const uint32_t home = Home(slot), next = Next(home);
    const uint16_t at_home = places_[home], at_next = places_[next];
    const uint32_t hot_slot = HotSlotAt(next);
    const int32_t is_over = (at_home == kNobody) | (at_next == kNobody) | (slot < 0);
    const int32_t is_missing = (copy_[hot_slot] != slot) | (at_home == kNobody);
    const auto exchange = static_cast<uint16_t>((at_home ^ at_next) & (is_missing - 1));
    places_[home] = at_home ^ exchange;
    places_[next] = at_next ^ exchange;
    return {static_cast<int32_t>(hot_slot), is_missing, is_missing & (is_over ^ 1)};
  }

  // Find(), and what it finds changes places with the candidate as well.
  int32_t FindAgain(int32_t slot) {
    const uint32_t home = Home(slot);
    uint32_t place = home;
    for (uint32_t probe = 0; probe <= mask_; ++probe, place = Next(place)) {
      if (places_[place] == kNobody) return kNone;
      const uint32_t hot_slot = HotSlotAt(place);
      if (copy_[hot_slot] != slot) continue;
      std::swap(places_[home], places_[place]);
      return static_cast<int32_t>(hot_slot);
    }
    return kNone;
  }

  // `hot_slot` is owned by `slot` from now on, kNone: by nobody. No other one is.
  void SetOwner(int32_t hot_slot, int32_t slot) {
    if (copy_[hot_slot] >= 0) is_lost_ |= !Erase(hot_slot);
    copy_[hot_slot] = slot;
    if (slot >= 0) Insert(hot_slot);
  }

 private:
  static constexpr uint16_t kComplete = 0x6b63, kUnknown = 0;  // the first word of the header
  static constexpr uint16_t kNobody = 0xffff;                  // a place that is free
  static constexpr int32_t kChanged = -3;                      // in copy_, while it is put right

  // Four words a bucket are taken by the copy of two owners at most.
  static constexpr int32_t kPlacesPerBucket = kIndexBucketSlots;
  static constexpr uint32_t PlaceCount(int32_t hot_size) {
    return static_cast<uint32_t>(RegionIndexBuckets(hot_size) * kPlacesPerBucket);
  }

  // Multiplicative hashing: neighbouring slots, the common case, end far apart.
  uint32_t Home(int32_t slot) const {
    return (static_cast<uint32_t>(slot) * 2654435769u) >> 16 & mask_;
  }
  uint32_t Next(uint32_t place) const { return (place + 1) & mask_; }
  uint32_t HotSlotAt(uint32_t place) const { return std::min(uint32_t{places_[place]}, last_); }

  template <typename List>
  int32_t MatchAll(const int32_t* slots, int32_t count, const Matches& to, const List& list) const;
  int32_t MatchSixteens(const int32_t* slots, int32_t count, const Matches& to) const;

  void SetState(uint16_t state);
  bool IsSameAsOwners() const;
  bool Repair();
  bool Rebuild();
  bool Adopt(int32_t hot_slot);
  void Insert(int32_t hot_slot);
  bool Erase(int32_t hot_slot);

  uint16_t* const words_;
  int32_t* const owners_;
  const int32_t hot_size_;
  const uint32_t last_;  // hot slot
  const uint32_t mask_;
  uint16_t* const places_;  // [mask_ + 1] hot slots or kNobody
  int32_t* const copy_;     // [hot_size]
  bool is_lost_ = false;    // somebody else wrote over it
};

}  // namespace kvtier::cpu
