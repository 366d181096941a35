// What a row must hold, computed from what it is and from nothing else: a row of another request,
// position or layer, an old one, or half of one is seen.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace kvtier::load {

struct RowName {
  uint64_t request = 0;  // unique in the whole run
  int32_t position = 0;
  int32_t layer = 0;
  int32_t version = 0;  // raised when the row is written anew
};

inline uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

inline uint64_t SeedOf(const RowName& row) {
  return Mix(Mix(row.request) ^ (static_cast<uint64_t>(row.position) << 32) ^
             (static_cast<uint64_t>(row.layer) << 16) ^ static_cast<uint64_t>(row.version));
}

// `bytes`: a multiple of 8.
inline void FillRow(const RowName& row, std::span<uint8_t> bytes) {
  uint64_t word = SeedOf(row);
  for (size_t at = 0; at < bytes.size(); at += sizeof(word)) {
    word += 0x9e3779b97f4a7c15;
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

inline bool IsRow(const RowName& row, std::span<const uint8_t> bytes) {
  if (bytes.empty()) return false;
  uint64_t expected = SeedOf(row);
  for (size_t at = 0; at < bytes.size(); at += sizeof(expected)) {
    expected += 0x9e3779b97f4a7c15;
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    if (word != expected) return false;
  }
  return true;
}

}  // namespace kvtier::load
