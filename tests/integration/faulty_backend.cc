// The CPU backend with faults on demand, in the place of the daemon's own choice of a backend: what
// a driver that hangs or a GPU that is lost does to the real process.
//
// Commands are lines of the FIFO that KVTIER_TEST_FAULTS names:
//   hold OPERATION    the next such operation stands still (names: fault_plan.h)
//   release           all of them go on
//   lose CAUSE        the device is lost
// How many have been obeyed is in the file of that name with ".obeyed" behind it.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"
#include "server/device/make_backend.h"

namespace kvtier {
namespace {

void Obey(const std::string& path, const std::shared_ptr<FaultPlan>& plan) {
  std::vector<std::unique_ptr<Delay>> held;
  // Open for writing, too: so it does not end when a writer closes.
  std::fstream commands(path, std::ios::in | std::ios::out);
  std::string line;
  for (int obeyed = 1; std::getline(commands, line); ++obeyed) {
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (command == "release") held.clear();
    if (command == "lose") plan->LoseDevice(rest);
    for (int i = 0; command == "hold" && i < kDeviceOperationCount; ++i) {
      const auto operation = static_cast<DeviceOperation>(i);
      if (DeviceOperationName(operation) == rest) held.push_back(plan->DelayNth(operation, 1));
    }
    std::ofstream(path + ".obeyed") << obeyed;
  }
}

}  // namespace

absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view /*name*/,
                                          const BackendOptions& /*options*/) {
  const auto plan = std::make_shared<FaultPlan>();
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> cpu, MakeCpuBackend({}));
  if (const char* path = std::getenv("KVTIER_TEST_FAULTS")) {
    // It ends with the process.
    std::thread([path = std::string(path), plan] { Obey(path, plan); }).detach();
  }
  return ChosenBackend{.backend = MakeFaultInjectingBackend(std::move(cpu), plan),
                       .note = "cpu, with faults on demand"};
}

}  // namespace kvtier
