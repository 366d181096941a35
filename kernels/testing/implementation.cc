#include "kernels/testing/implementation.h"

#include <memory>

#include "kernels/cpu/cpu.h"
#include "kernels/reference/reference.h"

namespace kvtier::testing {

Implementation Reference() {
  return {"Reference",       reference::SwapIn,     reference::ReplayPlan,
          reference::Backup, reference::Invalidate, reference::ResetRegion};
}

Implementation Cpu(int32_t thread_count) {
  const auto executor = std::make_shared<cpu::Executor>(thread_count);
  return {
      "Cpu" + std::to_string(thread_count),
      [executor](const SwapInParams& params) { cpu::SwapIn(params, *executor); },
      [executor](const ReplayPlanParams& params) { cpu::ReplayPlan(params, *executor); },
      [executor](const BackupParams& params) { cpu::Backup(params, *executor); },
      [executor](const InvalidateParams& params) { cpu::Invalidate(params, *executor); },
      cpu::ResetRegion,
  };
}

Implementation CpuMixed() {
  Implementation mixed = Cpu(1);
  mixed.name = "CpuMixed";
  const auto calls = std::make_shared<int64_t>(0);
  mixed.swap_in = [swap_in = mixed.swap_in, calls](const SwapInParams& params) {
    SwapInParams p = params;
    if (++*calls % 3 != 0) p.state.index = nullptr;
    swap_in(p);
  };
  return mixed;
}

std::vector<Implementation> HostImplementations() {
  return {Reference(), Cpu(1), Cpu(2), CpuMixed()};
}

}  // namespace kvtier::testing
