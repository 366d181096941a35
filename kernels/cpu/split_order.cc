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

// The same, kLanes entries at a time: pack(lanes, entries, list) writes the entries of the lanes of
// a mask one after the other, and then whatever. `count` is a multiple of kLanes.
template <int32_t kLanes, typename Pack>
[[gnu::always_inline]] inline Ends SplitLanes(const uint16_t* order, int32_t count,
                                              const uint8_t* is_hit, uint8_t* met, uint8_t stamp,
                                              Ends to, const Pack& pack) {
  constexpr uint32_t kAllLanes = static_cast<uint32_t>((uint64_t{1} << kLanes) - 1);
  for (int32_t i = 0; i < count; i += kLanes) {
    uint32_t mask = 0;
#pragma GCC unroll 32
    for (int32_t lane = kLanes - 1; lane >= 0; --lane) {
      const uint16_t entry = order[i + lane];
      mask = 2 * mask + is_hit[entry];
      met[entry] = stamp;
    }
    pack(mask, order + i, to.hits);
    pack(mask ^ kAllLanes, order + i, to.others);
    const auto hits = std::popcount(mask);
    to.hits += hits;
    to.others += kLanes - hits;
  }
  return to;
}

// Mask m: the bytes of the lanes of m, in order, then whatever.
constexpr auto kPacked = [] {
  std::array<std::array<uint8_t, 16>, 256> packed = {};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    int32_t at = 0;
    for (uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      packed[mask][at++] = 2 * lane;
      packed[mask][at++] = 2 * lane + 1;
    }
  }
  return packed;
}();

[[gnu::target("ssse3,popcnt")]] Ends SplitEights(const uint16_t* order, int32_t count,
                                                 const uint8_t* is_hit, uint8_t* met, uint8_t stamp,
                                                 Ends to) {
  const auto pack =
      [](uint32_t lanes, const uint16_t* from, uint16_t* list) __attribute__((target("ssse3"))) {
    const auto load = [](const void* at) {
      return _mm_loadu_si128(static_cast<const __m128i*>(at));
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(list),
                     _mm_shuffle_epi8(load(from), load(kPacked[lanes].data())));
  };
  return SplitLanes<8>(order, count, is_hit, met, stamp, to, pack);
}

[[gnu::target("avx512vbmi2,avx512bw,popcnt")]] Ends SplitThirtyTwos(const uint16_t* order,
                                                                    int32_t count,
                                                                    const uint8_t* is_hit,
                                                                    uint8_t* met, uint8_t stamp,
                                                                    Ends to) {
  const auto pack = [](uint32_t lanes, const uint16_t* from, uint16_t* list)
      __attribute__((target("avx512vbmi2,avx512bw"))) {
    _mm512_storeu_si512(list, _mm512_maskz_compress_epi16(lanes, _mm512_loadu_si512(from)));
  };
  return SplitLanes<32>(order, count, is_hit, met, stamp, to, pack);
}

#endif

}  // namespace

int32_t SplitOrder(const uint16_t* order, int32_t hot_size, HotSlotNotes* notes, uint16_t* hits,
                   uint16_t* others, int32_t lanes_max) {
  if (++notes->stamp == 0) {
    std::fill(notes->met.begin(), notes->met.end(), uint8_t{0});
    notes->stamp = 1;
  }
  uint8_t* const met = notes->met.data();
  Ends ends = {hits, others};
  int32_t done = 0;
#if defined(__x86_64__)
  if (lanes_max >= 32 && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512bw")) {
    done = hot_size / 32 * 32;
    ends = SplitThirtyTwos(order, done, notes->hits.data(), met, notes->stamp, ends);
  } else if (lanes_max >= 8 && __builtin_cpu_supports("ssse3") &&
             __builtin_cpu_supports("popcnt")) {
    done = hot_size / 8 * 8;
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
