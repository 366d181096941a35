#include "kernels/cpu/split_order.h"

#include <algorithm>
#include <array>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier::cpu {
namespace {

// The two lists as far as they have grown.
struct Ends {
  uint16_t* hits;
  uint16_t* others;
};

// Entry by entry: each goes to both lists, and one of them goes on. No branch to be wrong about.
Ends Split(const uint16_t* order, int32_t count, const uint8_t* is_hit, uint8_t* met, uint8_t stamp,
           Ends to) {
  for (int32_t i = 0; i < count; ++i) {
    const uint16_t entry = order[i];
    const int32_t hit = is_hit[entry];
    met[entry] = stamp;
    *to.hits = entry;
    *to.others = entry;
    to.hits += hit;
    to.others += 1 - hit;
  }
  return to;
}

#if defined(__x86_64__)

constexpr int32_t kLanes = 8;

// Mask m: the bytes of the lanes of m, in order, then whatever.
constexpr auto kPacked = [] {
  std::array<std::array<uint8_t, 2 * kLanes>, 1 << kLanes> packed = {};
  for (int32_t mask = 0; mask < 1 << kLanes; ++mask) {
    int32_t at = 0;
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      packed[mask][at++] = static_cast<uint8_t>(2 * lane);
      packed[mask][at++] = static_cast<uint8_t>(2 * lane + 1);
    }
  }
  return packed;
}();

// The same, eight entries at a time. `count` is a multiple of kLanes.
__attribute__((target("ssse3,popcnt"))) Ends SplitEights(const uint16_t* order, int32_t count,
                                                         const uint8_t* is_hit, uint8_t* met,
                                                         uint8_t stamp, Ends to) {
  for (int32_t i = 0; i < count; i += kLanes) {
    uint32_t mask = 0;
#pragma GCC unroll 8
    for (int32_t lane = kLanes - 1; lane >= 0; --lane) {
      const uint16_t entry = order[i + lane];
      mask = 2 * mask + is_hit[entry];
      met[entry] = stamp;
    }
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(order + i));
    const auto pack = [&](uint32_t lanes, uint16_t * list) __attribute__((target("ssse3"))) {
      const __m128i bytes =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(kPacked[lanes].data()));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(list), _mm_shuffle_epi8(entries, bytes));
    };
    pack(mask, to.hits);
    pack(mask ^ 0xff, to.others);
    const auto hits = std::popcount(mask);
    to.hits += hits;
    to.others += kLanes - hits;
  }
  return to;
}

#endif

}  // namespace

int32_t SplitOrder(const uint16_t* order, int32_t hot_size, HotSlotNotes* notes, uint16_t* hits,
                   uint16_t* others) {
  if (++notes->stamp == 0) {
    std::fill(notes->met.begin(), notes->met.end(), uint8_t{0});
    notes->stamp = 1;
  }
  uint8_t* const met = notes->met.data();
  Ends ends = {hits, others};
  int32_t done = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt")) {
    done = hot_size / kLanes * kLanes;
    ends = SplitEights(order, done, notes->hits.data(), met, notes->stamp, ends);
  }
#endif
  ends = Split(order + done, hot_size - done, notes->hits.data(), met, notes->stamp, ends);
  // So many entries have met so many hot slots only if none was there twice or anywhere else.
  uint32_t missed = 0;
  for (int32_t h = 0; h < hot_size; ++h) missed |= met[h] ^ notes->stamp;
  return missed == 0 ? static_cast<int32_t>(ends.hits - hits) : -1;
}

}  // namespace kvtier::cpu
