// What must hold after every step, checked without knowing how a step is done.
//
// Shares no code with the reference and follows none of its phases: a mistake there does not
// become one here. Slow (a set for everything), for steps of a few hundred positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/testing/group_fixture.h"

namespace kvtier::testing {

// Taken before a step.
struct StepSnapshot {
  explicit StepSnapshot(const GroupFixture& group)
      : owner(group.owner),
        lru(group.lru),
        score(group.score),
        kept(group.kept),
        counts(group.counts()) {}

  std::vector<int32_t> owner;
  std::vector<int16_t> lru;
  std::vector<uint8_t> score;
  std::vector<int32_t> kept;
  Counts counts;
};

// Empty, or what is wrong with the step that led from `before` to `after`. The state before must
// be a valid one (orders are permutations, no slot owned twice in a region, owned rows hold their
// bytes), and `after` must still hold the step's inputs.
//
// Checks: outputs of every position, miss mask, valid counts and plan; that equal slots are one
// lookup and others have hot rows of their own; that hits stay where they are; the number of
// misses, counted from scratch; that they took the oldest slots or, with scores, the cheapest ones,
// in order of appearance; every score; the new order; one owner a slot; that owned rows and kept
// rows equal their host rows on all layers and rows without a source are zero; which misses came
// from kept rows; that padding rows and regions without rows are left alone; every counter (where
// rows are shared: that bytes and rows fit each other).
std::string CheckStep(const StepSnapshot& before, const GroupFixture& after);

}  // namespace kvtier::testing
