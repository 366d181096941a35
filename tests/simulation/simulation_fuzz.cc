// Sessions, blocks, and bytes under a late device, lost leases, faults and restarts.
#include "tests/fuzz/target.h"
#include "tests/simulation/program.h"
#include "tests/simulation/simulation.h"

namespace kvtier::fuzz {
namespace {

absl::Status Play(absl::string_view input, Played* played) {
  return simulation::Simulation(input).Play(played);
}

}  // namespace

Target GetTarget() {
  return {.play = Play,
          .mutate = simulation::MutateProgram,
          .split = simulation::SplitProgram,
          .describe = simulation::DescribeProgram};
}

}  // namespace kvtier::fuzz
