#include "kernels/cpu/owner_index.h"

#include <atomic>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvtier::cpu {
namespace {

int32_t Load(int32_t* owner) {
  return std::atomic_ref<int32_t>(*owner).load(std::memory_order_relaxed);
}

}  // namespace

void OwnerIndex::SetState(uint16_t state) {
  std::atomic_ref<uint16_t>(words_[0]).store(state, std::memory_order_release);
}

bool OwnerIndex::Sync() {
  const bool is_complete =
      std::atomic_ref<uint16_t>(words_[0]).load(std::memory_order_acquire) == kComplete;
  SetState(kUnknown);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return is_complete && (IsSameAsOwners() || Repair()) ? true : Rebuild();
}

// Others may drop owners meanwhile, by single 32-bit stores: what a wide load sees of each owner is
// either value, as with an atomic load, which is all that ThreadSanitizer would have.
__attribute__((no_sanitize("thread"))) bool OwnerIndex::IsSameAsOwners() const {
  int32_t h = 0;
  int32_t difference = 0;
#if defined(__SSE2__)
  const auto load = [](const int32_t* from) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  __m128i differences = _mm_setzero_si128();
  for (; h + 8 <= hot_size_; h += 8) {
    const __m128i low = _mm_xor_si128(load(owners_ + h), load(copy_ + h));
    const __m128i high = _mm_xor_si128(load(owners_ + h + 4), load(copy_ + h + 4));
    differences = _mm_or_si128(differences, _mm_or_si128(low, high));
  }
  const __m128i equal = _mm_cmpeq_epi8(differences, _mm_setzero_si128());
  difference = _mm_movemask_epi8(equal) ^ 0xffff;
#endif
  for (; h < hot_size_; ++h) difference |= Load(owners_ + h) ^ copy_[h];
  return difference == 0;
}

// First out with what is gone, then in with what is new: two hot slots may have changed owners.
bool OwnerIndex::Repair() {
  for (int32_t h = 0; h < hot_size_; ++h) {
    if (Load(owners_ + h) == copy_[h]) continue;
    if (copy_[h] >= 0 && !Erase(h)) return false;
    copy_[h] = kChanged;
  }
  for (int32_t h = 0; h < hot_size_; ++h) {
    if (copy_[h] == kChanged && !Adopt(h)) return false;
  }
  return true;
}

bool OwnerIndex::Rebuild() {
  std::fill_n(places_, mask_ + 1, kNobody);
  std::fill_n(copy_, hot_size_, kNone);
  for (int32_t h = 0; h < hot_size_; ++h) {
    if (!Adopt(h)) return false;
  }
  return true;
}

// The hot slot is in no place; its owner is what owners_ says now.
bool OwnerIndex::Adopt(int32_t hot_slot) {
  const int32_t slot = Load(owners_ + hot_slot);
  if (slot < kNone || (slot >= 0 && Find(slot) != kNone)) return false;
  copy_[hot_slot] = slot;
  if (slot >= 0) Insert(hot_slot);
  return true;
}

void OwnerIndex::Insert(int32_t hot_slot) {
  uint32_t place = Home(copy_[hot_slot]);
  for (uint32_t probe = 0; probe <= mask_; ++probe, place = Next(place)) {
    if (places_[place] != kNobody) continue;
    places_[place] = static_cast<uint16_t>(hot_slot);
    return;
  }
}

// Places behind it that would be cut off from their home move up. False: it was in no place where
// its owner would have been found.
bool OwnerIndex::Erase(int32_t hot_slot) {
  uint32_t free = Home(copy_[hot_slot]);
  for (uint32_t probe = 0; places_[free] != hot_slot; ++probe, free = Next(free)) {
    if (places_[free] == kNobody || probe > mask_) return false;
  }
  uint32_t place = Next(free);
  for (uint32_t probe = 0; probe <= mask_ && places_[place] != kNobody; ++probe) {
    const uint32_t home = Home(copy_[HotSlotAt(place)]);
    if (((place - home) & mask_) >= ((place - free) & mask_)) {
      places_[free] = places_[place];
      free = place;
    }
    place = Next(place);
  }
  places_[free] = kNobody;
  return true;
}

}  // namespace kvtier::cpu
