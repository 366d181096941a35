#include "tests/load/process_sample.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace kvtier::load {
namespace {

// User and system time, the 14th and 15th field; the second is a name that may have blanks.
double CpuSeconds(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  int64_t ticks = 0;
  size_t at = name_end + 1;
  for (int field = 3; field <= 15; ++field) {
    const size_t begin = text.find_first_not_of(' ', at);
    if (begin == std::string::npos) return 0;
    at = text.find(' ', begin);
    if (field >= 14) ticks += std::stoll(text.substr(begin, at - begin));
  }
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

absl::StatusOr<ProcessSample> SampleProcess(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  ProcessSample sample;
  std::ifstream status(folder + "/status");
  std::string key;
  int64_t value = 0;
  bool found = false;
  while (status >> key) {
    if (key == "RssAnon:" && status >> value) {
      sample.anonymous_bytes = value * 1024;
      found = true;
    } else if (key == "RssShmem:" && status >> value) {
      sample.shared_bytes = value * 1024;
    } else if (key == "Threads:" && status >> value) {
      sample.threads = value;
    }
    std::getline(status, key);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder + "/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++sample.descriptors;
  }
  if (!found || error) return absl::NotFoundError(absl::StrCat("no process ", pid));
  sample.cpu_seconds = CpuSeconds(folder);
  return sample;
}

}  // namespace kvtier::load
