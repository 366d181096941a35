// The worked example of a swap-in step, as numbers. Standard library only.
//
// kernels/README.md explains it; worked_example.json is the same for other languages (a test
// compares the two). Every implementation of a step on every floor must reproduce it.
//
// Two ways to the state before the step: write kOwnerBefore and kLruBefore, or run the steps of
// kSetup from an empty region, through whatever interface is under test. That makes
// kSetupHits hits and kSetupMisses misses. Host row g of layer l holds at byte j the value
// (31 * g + 7 * j + 13 * l) & 0xff.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::golden {

inline constexpr int32_t kTopK = 8;
inline constexpr int32_t kHotSize = 16;
inline constexpr int32_t kBase = 0;  // first hot row of the region
inline constexpr int32_t kBlockSize = 64;
inline constexpr int32_t kSlotCount = 2048;  // rows of the host pool
inline constexpr int32_t kRowBytes = 656;

inline constexpr std::array<int32_t, 16> kOwnerBefore = {
    100, 200, 300, 400, 500, 600, 750, 800, 900, 1000, 1050, 1200, 1300, 1400, 1500, 1600};
inline constexpr std::array<int32_t, 16> kLruBefore = {3, 1, 5,  0,  7,  2,  4,  6,
                                                       8, 9, 10, 11, 12, 13, 14, 15};

// The step.
inline constexpr int32_t kNewestSlot = 150;
inline constexpr std::array<int32_t, 8> kSlots = {150, 200, 700, -1, 300, 800, 1100, 900};

// What it leaves.
inline constexpr std::array<int32_t, 8> kHotIndices = {16, 1, 3, -1, 2, 7, 5, 8};
inline constexpr std::array<int32_t, 8> kMissMask = {0, 0, 1, 0, 0, 0, 1, 0};
inline constexpr int32_t kValidCount = 7;
inline constexpr std::array<int32_t, 2> kPlanSlots = {700, 1100};
inline constexpr std::array<int32_t, 2> kPlanHotRows = {3, 5};
inline constexpr std::array<int32_t, 16> kOwnerAfter = {
    100, 200, 300, 700, 500, 1100, 750, 800, 900, 1000, 1050, 1200, 1300, 1400, 1500, 1600};
inline constexpr std::array<int32_t, 16> kLruAfter = {0,  4,  6, 9, 10, 11, 12, 13,
                                                      14, 15, 3, 5, 1,  7,  2,  8};
inline constexpr int32_t kHits = 4;
inline constexpr int32_t kMisses = 2;
inline constexpr int32_t kNewest = 1;
inline constexpr int32_t kInvalid = 1;
inline constexpr int32_t kEvictions = 2;

// The same step with scores (EvictionPolicy::kAged) and what it leaves, where that is different:
// hot slots 6 and, of 5 and 4 the older one, 5 are the cheapest.
inline constexpr std::array<int32_t, 16> kAgedScoreBefore = {
    163, 128, 145, 179, 42, 42, 34, 247, 9, 128, 128, 162, 120, 128, 145, 128};
inline constexpr std::array<int32_t, 8> kAgedHotIndices = {16, 1, 5, -1, 2, 7, 6, 8};
inline constexpr std::array<int32_t, 2> kAgedPlanHotRows = {5, 6};
inline constexpr std::array<int32_t, 16> kAgedOwnerAfter = {
    100, 200, 300, 400, 500, 700, 1100, 800, 900, 1000, 1050, 1200, 1300, 1400, 1500, 1600};
inline constexpr std::array<int32_t, 16> kAgedLruAfter = {3,  0,  4, 9, 10, 11, 12, 13,
                                                          14, 15, 5, 6, 1,  7,  2,  8};
inline constexpr std::array<int32_t, 16> kAgedScoreAfter = {155, 145, 162, 171, 34,  128, 128, 247,
                                                            162, 120, 120, 154, 112, 120, 137, 120};

// Steps that build kOwnerBefore and kLruBefore from an empty region. In the first two, one row
// asks for the first and the last eight owners; then one step for each entry of kLruBefore asks
// for its owner alone.
inline constexpr int32_t kSetupNewestSlot = 1650;
inline constexpr int32_t kSetupStepCount = 18;
inline constexpr int32_t kSetupHits = 16;
inline constexpr int32_t kSetupMisses = 16;

// Top-k of setup step `step`.
constexpr std::array<int32_t, kTopK> SetupSlots(int32_t step) {
  std::array<int32_t, kTopK> slots = {-1, -1, -1, -1, -1, -1, -1, -1};
  if (step < 2) {
    for (int32_t i = 0; i < kTopK; ++i) slots[i] = kOwnerBefore[step * kTopK + i];
  } else {
    slots[0] = kOwnerBefore[kLruBefore[step - 2]];
  }
  return slots;
}

}  // namespace kvtier::golden
