// The CPU backend with faults on demand, in the place of the daemon's own choice of a backend: what
// a driver that hangs or a GPU that is lost does to the real process; and what a system does that
// has no more memory, descriptors or threads.
//
// Commands are lines of the FIFO that KVTIER_TEST_FAULTS names:
//   hold OPERATION    the next such operation stands still (names: fault_plan.h)
//   release           all of them go on
//   lose CAUSE        the device is lost
//   exhaust           the next allocation of the C++ runtime fails
// How many have been obeyed is in the file of that name with ".obeyed" behind it.
//
// KVTIER_TEST_HOLD_PIN=FIFO: the first registration of host memory stands still until somebody has
// opened that FIFO for writing and closed it.
//
// KVTIER_TEST_FAIL_SYSTEM_CALL=N: the Nth call of the operating system that this project's code
// makes from the choice of the backend on fails, but for hints and for those by which threads wait.
// A line on standard error says at the end which it was.
#include <cstdlib>
#include <fstream>
#include <iostream>
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
#include "tests/faults/allocations.h"
#include "tests/faults/system_calls.h"

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
    if (command == "exhaust") faults::FailAllocation(1);
    for (int i = 0; command == "hold" && i < kDeviceOperationCount; ++i) {
      const auto operation = static_cast<DeviceOperation>(i);
      if (DeviceOperationName(operation) == rest) held.push_back(plan->DelayNth(operation, 1));
    }
    std::ofstream(path + ".obeyed") << obeyed;
  }
}

void HoldPin(const std::string& path, const std::shared_ptr<FaultPlan>& plan) {
  std::shared_ptr<Delay> held = plan->DelayNth(DeviceOperation::kRegisterHost, 1);
  // It ends with the process.
  std::thread([path, held] {
    std::string line;
    std::ifstream fifo(path);
    while (std::getline(fifo, line)) continue;
    held->Release();
  }).detach();
}

// For the rest of the process.
void FailSystemCall(int64_t nth) {
  std::vector<faults::SystemCall> calls = faults::AllSystemCalls();
  std::erase_if(calls, [](faults::SystemCall call) {
    // One for each page: pool_fault_test fails them.
    if (call == faults::SystemCall::kMadvise || call == faults::SystemCall::kMincore) return true;
    // Threads make these whenever they are woken, so that their numbers would change.
    return call == faults::SystemCall::kPoll || call == faults::SystemCall::kAccept4 ||
           call == faults::SystemCall::kRecv || call == faults::SystemCall::kRead ||
           call == faults::SystemCall::kWrite;
  });
  static const auto* const fault = new faults::SystemCallFault(calls, nth);
  std::atexit([] { std::cerr << "system call " << fault->ToString() << std::endl; });
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
  if (const char* path = std::getenv("KVTIER_TEST_HOLD_PIN")) HoldPin(path, plan);
  if (const char* nth = std::getenv("KVTIER_TEST_FAIL_SYSTEM_CALL")) {
    FailSystemCall(std::atoll(nth));
  }
  return ChosenBackend{.backend = MakeFaultInjectingBackend(std::move(cpu), plan),
                       .note = "cpu, with faults on demand"};
}

}  // namespace kvtier
