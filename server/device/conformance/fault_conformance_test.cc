// A fault-injecting backend without faults is the backend that it wraps.

#include "server/core/status_macros.h"
#include "server/device/conformance/conformance.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"

namespace kvtier {
namespace {

absl::StatusOr<std::unique_ptr<DeviceBackend>> WithoutFaults() {
  KVTIER_ASSIGN_OR_RETURN(auto inner, MakeCpuBackend({}));
  return MakeFaultInjectingBackend(std::move(inner), std::make_shared<FaultPlan>());
}

INSTANTIATE_TEST_SUITE_P(Fault, BackendConformance,
                         ::testing::Values(ConformanceParam{"WithoutFaults", WithoutFaults}),
                         ConformanceName);

}  // namespace
}  // namespace kvtier
