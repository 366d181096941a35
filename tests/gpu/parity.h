// Random steps of two implementations side by side: they must not differ in a bit.
//
//   for (const ParityCase& c : SmallParityCases()) {
//     EXPECT_EQ(PlayParity(c, /*seed=*/1, c.steps, Reference(), SimulatedCuda(...)), "");
//   }
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/testing/group_fixture.h"
#include "kernels/testing/implementation.h"

namespace kvtier::testing {

struct ParityCase {
  std::string name;  // letters, digits and _
  GroupOptions options;
  int32_t steps;
  int32_t threads;       // of a resolving block
  bool no_plan = false;  // optional outputs are left out
  bool corrupt = false;  // a stray writer damages orders and owners
};

inline void PrintTo(const ParityCase& c, std::ostream* out) { *out << c.name; }

// Shapes that any machine plays in seconds: every rule, every edge of warps and words.
std::vector<ParityCase> SmallParityCases();
// Shapes of production and the limits: for a GPU.
std::vector<ParityCase> LargeParityCases();

// Plays `steps` random steps of `seed` on both. Returns "" or where they first differ.
std::string PlayParity(const ParityCase& parity_case, uint64_t seed, int32_t steps,
                       const Implementation& reference, const Implementation& subject);

// Calls too large for one launch: backups of up to 2,500 rows, in which slots repeat, also on
// behalf of several regions, and invalidations of up to 5,000 blocks. Returns as PlayParity does.
std::string PlayLargeCalls(uint64_t seed, int32_t calls, const Implementation& reference,
                           const Implementation& subject);

}  // namespace kvtier::testing
