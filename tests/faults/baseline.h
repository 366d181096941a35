// What a process must have again after a fault: descriptors, threads, mappings of shared memory.
// For tests.
#pragma once

#include <string>
#include <vector>

namespace kvtier::faults {

struct Baseline {
  static Baseline Now();

  std::vector<std::string> descriptors;  // what they name, sorted, less anonymous numbers
  std::vector<std::string> mappings;     // files mapped: sorted names, once for each mapping
  int threads = 0;

  bool operator==(const Baseline&) const = default;
};

// What `now` has and `before` has not, and the other way round, in lines; "" if they are equal.
std::string Difference(const Baseline& before, const Baseline& now);

}  // namespace kvtier::faults
