// What the first place of the index says about all slots of a row: most of what a step asks for is
// found there.
#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/owner_index.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier::cpu {
namespace {

// So many positions at a time that what is noted of them stays in the first-level cache.
constexpr int32_t kChunk = 256;

struct Chunk {
  alignas(64) std::array<uint16_t, kChunk> homes;
  alignas(64) std::array<uint16_t, kChunk> candidates;
  alignas(64) std::array<int32_t, kChunk> owners;
  alignas(64) std::array<uint16_t, kChunk> notes;
};

// The positions whose slot the candidate does not own, without a branch. Returns the list's end.
inline int32_t* ListOthers(const int32_t* owners, const int32_t* slots, int32_t count,
                           int32_t first, int32_t* others) {
  for (int32_t i = 0; i < count; ++i) {
    *others = first + i;
    others += owners[i] != slots[i];
  }
  return others;
}

}  // namespace

// Loops of one thing each: those that look nothing up become vectors, of the instructions that the
// caller may use.
template <typename List>
[[gnu::always_inline]] inline int32_t OwnerIndex::MatchAll(const int32_t* slots, int32_t count,
                                                           const Matches& to,
                                                           const List& list) const {
  Chunk chunk;
  const uint16_t last = last_;
  const int32_t base = to.base;
  int32_t* others = to.others;
  for (int32_t from = 0; from < count; from += kChunk) {
    const int32_t n = std::min(count - from, kChunk);
    const int32_t* const asked = slots + from;
    int32_t* const hot_rows = to.hot_rows + from;
    uint16_t* const homes = chunk.homes.data();
    uint16_t* const candidates = chunk.candidates.data();
    uint16_t* const notes = chunk.notes.data();
    int32_t* const owners = chunk.owners.data();
    for (int32_t i = 0; i < n; ++i) homes[i] = static_cast<uint16_t>(Home(asked[i]));
    for (int32_t i = 0; i < n; ++i) candidates[i] = places_[homes[i]];
    for (int32_t i = 0; i < n; ++i) candidates[i] = std::min(candidates[i], last);
    for (int32_t i = 0; i < n; ++i) owners[i] = copy_[candidates[i]];
    for (int32_t i = 0; i < n; ++i) hot_rows[i] = base + candidates[i];
    for (int32_t i = 0; i < n; ++i) {
      notes[i] = static_cast<uint16_t>(candidates[i] | -(owners[i] != asked[i]));
    }
    for (int32_t i = 0; i < n; ++i) to.hits[notes[i]] = 1;
    others = list(owners, asked, n, to.first + from, others);
  }
  return static_cast<int32_t>(others - to.others);
}

#if defined(__x86_64__)
[[gnu::target("avx512f,avx512bw,avx512vl,popcnt")]] int32_t OwnerIndex::MatchSixteens(
    const int32_t* slots, int32_t count, const Matches& to) const {
  const auto list = [](const int32_t* owners, const int32_t* asked, int32_t n, int32_t first,
                       int32_t* others) __attribute__((target("avx512f,popcnt"))) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const __mmask16 is_other =
          _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(owners + i), _mm512_loadu_si512(asked + i));
      const __m512i positions = _mm512_add_epi32(_mm512_set1_epi32(first + i), lanes);
      _mm512_storeu_si512(others, _mm512_maskz_compress_epi32(is_other, positions));
      others += std::popcount(static_cast<uint32_t>(is_other));
    }
    return ListOthers(owners + i, asked + i, n - i, first + i, others);
  };
  return MatchAll(slots, count, to, list);
}
#endif

int32_t OwnerIndex::Match(const int32_t* slots, int32_t count, const Matches& to,
                          int32_t lanes_max) const {
#if defined(__x86_64__)
  if (lanes_max >= 16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("popcnt")) {
    return MatchSixteens(slots, count, to);
  }
#endif
  return MatchAll(slots, count, to, ListOthers);
}

}  // namespace kvtier::cpu
