#include "server/service/process_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvtier {
namespace {

// Entries of /proc/self/fd, or -1. The one that reads them is not counted.
int OpenDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(folder);
  return count - 1;
}

double ResidentBytes() {
  FILE* file = fopen("/proc/self/statm", "re");
  if (file == nullptr) return -1;
  long long size = 0, resident = 0;
  const int fields = fscanf(file, "%lld %lld", &size, &resident);
  fclose(file);
  if (fields != 2) return -1;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

std::vector<ProcessMetric> ReadProcessMetrics() {
  std::vector<ProcessMetric> metrics;
  const auto gauge = [&metrics](const char* name, const char* help, double value) {
    if (value >= 0) metrics.push_back({name, help, false, value});
  };
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    metrics.push_back({"process_cpu_seconds_total", "User and system CPU time.", true,
                       SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime)});
  }
  gauge("process_resident_memory_bytes", "Resident memory.", ResidentBytes());
  gauge("process_open_fds", "Open file descriptors.", OpenDescriptors());
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge("process_max_fds", "File descriptors that may be open.",
          static_cast<double>(limit.rlim_cur));
  }
  return metrics;
}

}  // namespace kvtier
