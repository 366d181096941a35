#include "tests/gpu/gpu_machine.h"

#include <cuda_runtime_api.h>

#include <cctype>
#include <cstdint>
#include <string>

namespace kvtier::testing {

JsonObject DescribeGpuMachine() {
  JsonObject machine = DescribeMachine();
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return machine;
  char bus[32] = {};
  int driver = 0, runtime = 0;
  (void)cudaDeviceGetPCIBusId(bus, sizeof(bus), 0);
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  for (char* c = bus; *c != 0; ++c) *c = static_cast<char>(std::tolower(*c));
  const std::string device = std::string("/sys/bus/pci/devices/") + bus;
  machine.Add("gpu", std::string(properties.name))
      .Add("gpu_memory_bytes", static_cast<int64_t>(properties.totalGlobalMem))
      .Add("multiprocessors", properties.multiProcessorCount)
      .Add("driver", LineOf("/proc/driver/nvidia/version", "NVRM version"))
      .Add("cuda_driver", driver)
      .Add("cuda_runtime", runtime)
      .Add("pci_link_speed", LineOf(device + "/current_link_speed", ""))
      .Add("pci_link_width", LineOf(device + "/current_link_width", ""));
  return machine;
}

}  // namespace kvtier::testing
