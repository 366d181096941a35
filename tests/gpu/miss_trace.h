// Top-k positions of decode steps with an exact number of misses in each.
//
// A request starts with top_k distinct positions of its context. Each step keeps a share of the
// last top-k and draws the rest from positions that are in no hot slot, in shuffled order. This is
// the recipe by which kernels of this kind have been compared before, under exact LRU.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/testing/random_steps.h"

namespace kvtier::testing {

class MissTrace {
 public:
  MissTrace(uint64_t seed, int32_t top_k, int32_t hot_size, int32_t context, int32_t misses);

  // The positions [top_k] of the next step. The first one misses all of them.
  const std::vector<int32_t>& Next();
  // The hot slot [top_k] that each of them has after the step, whatever policy chose it.
  void Note(const int32_t* hot_slots);

 private:
  Random random_;
  const int32_t context_, misses_;
  bool has_begun_ = false;
  std::vector<int32_t> topk_;
  std::vector<int32_t> cached_;  // [hot_size] the position of each hot slot, kNone if it is empty
  std::vector<bool> is_cached_;  // [context]
  std::vector<bool> is_asked_;   // [context]
};

}  // namespace kvtier::testing
