// Random decode steps that make sense: a seed makes the same ones everywhere.
//
//   GroupFixture a(options), b(options);
//   RandomSteps steps(seed, &a);            // lays out block tables
//   CopyInputs(a, &b);
//   for (...) {
//     const Round round = steps.Next();
//     Play(round, Reference(), &a);
//     Play(round, Cpu(2), &b);
//     EXPECT_EQ(Difference(a, b), "") << "seed " << seed;
//   }
//
// Blocks belong to one region each, as they belong to one request: a backup then never makes
// another region's copies stale, and "owned rows hold their host rows" is an invariant. With
// GroupOptions::shared_blocks it is none, but implementations still must not differ.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/testing/group_fixture.h"
#include "kernels/testing/implementation.h"

namespace kvtier::testing {

// SplitMix64: the same numbers on every platform, which std distributions don't promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int32_t Below(int32_t end) { return static_cast<int32_t>(Next() % static_cast<uint64_t>(end)); }
  bool OneIn(int32_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

// What happens to a group from one step to the next, in this order.
struct Round {
  int32_t reset_region = kNone;           // its request left, another one came
  std::vector<int32_t> assigned_blocks;   // generations rise, copies are invalidated
  std::vector<int32_t> prefill_requests;  // rows of a tensor to the host pool
  std::vector<int32_t> prefill_slots;
  std::vector<int32_t> prefill_source_rows;
  uint8_t salt = 0;  // of all rows written in this round

  // Inputs of the step, as in GroupFixture. The newest rows are written before it.
  int32_t num_real_rows = 0;
  std::vector<int32_t> row_to_request, newest_slot, topk, sequence_lengths;

  bool replay = false;  // the last layer gets its bytes by ReplayPlan
  bool backup = false;  // the newest rows are backed up after the step
};

class RandomSteps {
 public:
  // Fills in the block table of `group` (if it has one), whose options shape the steps. Its
  // slot_count must be at least region_count * block_size.
  RandomSteps(uint64_t seed, GroupFixture* group);

  Round Next();

 private:
  int32_t BlockOf(int32_t region, int32_t i) const;  // its i-th one
  int32_t RandomSlot(int32_t region);
  int32_t RandomEntry(int32_t region);
  void DrawRows(Round* round);
  void DrawTopK(Round* round);
  void DrawBackups(Round* round);

  const GroupOptions options_;
  const int32_t blocks_per_region_;
  Random random_;
  std::vector<std::vector<int32_t>> recent_;  // [region] entries of its last rows
};

// Inputs that don't change from step to step.
void CopyInputs(const GroupFixture& from, GroupFixture* to);

// Plays everything of a round up to the step, and sets the step's inputs.
void Prepare(const Round& round, const Implementation& implementation, GroupFixture* group);
// Plays the step. Outputs are poisoned before it.
void Step(const Round& round, const Implementation& implementation, GroupFixture* group);
// Plays what comes after it.
void Finish(const Round& round, const Implementation& implementation, GroupFixture* group);
// All three.
void Play(const Round& round, const Implementation& implementation, GroupFixture* group);

}  // namespace kvtier::testing
