#include "tests/e2e/context_switches.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace kvtier::e2e {

int64_t ContextSwitchesOf(pid_t pid) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  int64_t switches = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(tasks, ignored)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      const size_t colon = line.find("voluntary_ctxt_switches:");  // nonvoluntary as well
      if (colon != std::string::npos) switches += std::stoll(line.substr(line.find(':') + 1));
    }
  }
  return switches;
}

}  // namespace kvtier::e2e
