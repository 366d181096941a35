// One implementation of the kernels as the tests see it.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/params.h"

namespace kvtier::testing {

struct Implementation {
  std::string name;  // letters and digits: it becomes part of test names
  std::function<void(const SwapInParams&)> swap_in;
  std::function<void(const ReplayPlanParams&)> replay_plan;
  std::function<void(const BackupParams&)> backup;
  std::function<void(const InvalidateParams&)> invalidate;
  std::function<void(const ResetRegionParams&)> reset_region;
};

// For the names of parameterized tests.
inline std::ostream& operator<<(std::ostream& out, const Implementation& implementation) {
  return out << implementation.name;
}

// The sequential reference.
Implementation Reference();

// kvtier::cpu with this many threads.
Implementation Cpu(int32_t thread_count);

// The same with one thread, and the regions' index withheld in two of three swap-ins, as by
// somebody who keeps none.
Implementation CpuMixed();

// Everything that runs on a CPU: the reference first, then the others.
std::vector<Implementation> HostImplementations();

}  // namespace kvtier::testing
