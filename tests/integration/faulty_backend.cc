// The CPU backend with faults on demand, in the place of the daemon's own choice of a backend: what
// a driver that hangs or a GPU that is lost does to the real process.
//
// Commands are lines of the FIFO that KVTIER_TEST_FAULTS names:
//   hold OPERATION    the next such operation stands still (names: fault_plan.h)
//   release           all of them go on
//   lose CAUSE        the device is lost
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
  while (true) {
    // A writer that closes ends the stream; the next one may come.
    std::ifstream commands(path);
    std::string command, rest;
    while (commands >> command) {
      if (command == "release") {
        held.clear();
        continue;
      }
      std::getline(commands >> std::ws, rest);
      if (command == "lose") plan->LoseDevice(rest);
      for (int i = 0; command == "hold" && i < kDeviceOperationCount; ++i) {
        const auto operation = static_cast<DeviceOperation>(i);
        if (DeviceOperationName(operation) == rest) held.push_back(plan->DelayNth(operation, 1));
      }
    }
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
