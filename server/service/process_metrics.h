// What every process says of itself to Prometheus.
#pragma once

#include <string>
#include <vector>

namespace kvtier {

struct ProcessMetric {
  std::string name;
  std::string help;
  bool is_counter = false;
  double value = 0;
};

// Of this process, from the kernel; what it does not tell is left out.
std::vector<ProcessMetric> ReadProcessMetrics();

}  // namespace kvtier
