#include "client/demo/content.h"

#include <cstring>

namespace kvtier::demo {
namespace {

// The finalizer of SplitMix64: a bijection in which every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t Word(uint64_t seed, size_t index) { return Mix(seed + index * 0x9e3779b97f4a7c15u); }

}  // namespace

uint64_t TenantOf(const std::string& cache, const std::string& request) {
  uint64_t tenant = cache.size();
  for (const std::string& text : {cache, request}) {
    for (const char c : text) tenant = Mix(tenant ^ static_cast<unsigned char>(c));
  }
  return tenant;
}

uint64_t RowSeed(uint64_t tenant, int32_t position, int32_t layer, int32_t generation) {
  const uint64_t place =
      uint64_t{static_cast<uint32_t>(position)} << 32 | static_cast<uint32_t>(generation);
  return Mix(Mix(tenant ^ static_cast<uint32_t>(layer)) ^ place);
}

void FillRow(uint64_t seed, std::span<uint8_t> row) {
  for (size_t i = 0; i * sizeof(uint64_t) < row.size(); ++i) {
    const uint64_t word = Word(seed, i);
    std::memcpy(row.data() + i * sizeof(word), &word, sizeof(word));
  }
}

bool RowIs(uint64_t seed, std::span<const uint8_t> row) {
  uint64_t difference = 0;
  for (size_t i = 0; i * sizeof(uint64_t) < row.size(); ++i) {
    uint64_t word;
    std::memcpy(&word, row.data() + i * sizeof(word), sizeof(word));
    difference |= word ^ Word(seed, i);
  }
  return difference == 0;
}

}  // namespace kvtier::demo
