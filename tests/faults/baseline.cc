#include "tests/faults/baseline.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

namespace kvtier::faults {
namespace {

std::vector<std::string> NamesIn(const char* path) {
  std::vector<std::string> names;
  DIR* const folder = opendir(path);
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(folder);
  return names;
}

void AddDifference(const std::string& what, const std::vector<std::string>& before,
                   const std::vector<std::string>& now, std::string* text) {
  std::vector<std::string> added;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                      std::back_inserter(added));
  for (const std::string& each : added) *text += what + ": " + each + "\n";
}

}  // namespace

Baseline Baseline::Now() {
  // ThreadSanitizer starts a thread of its own together with the program's first.
  [[maybe_unused]] static const bool started = (std::thread([] {}).join(), true);
  Baseline now;
  for (const std::string& name : NamesIn("/proc/self/fd")) {
    char target[4096];
    const ssize_t size = readlink(("/proc/self/fd/" + name).c_str(), target, sizeof(target));
    // The folder that was read has been closed.
    if (size < 0) continue;
    const std::string text(target, static_cast<size_t>(size));
    now.descriptors.push_back(text.substr(0, text.find('[')));
  }
  now.threads = static_cast<int>(NamesIn("/proc/self/task").size());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.find_first_of("/");
    const bool is_shared =
        line.find("memfd:") != std::string::npos || line.find("/dev/shm/") != std::string::npos;
    if (name != std::string::npos && is_shared) now.mappings.push_back(line.substr(name));
  }
  std::sort(now.descriptors.begin(), now.descriptors.end());
  std::sort(now.mappings.begin(), now.mappings.end());
  return now;
}

std::string Difference(const Baseline& before, const Baseline& now) {
  std::string text;
  AddDifference("new descriptor", before.descriptors, now.descriptors, &text);
  AddDifference("lost descriptor", now.descriptors, before.descriptors, &text);
  AddDifference("new mapping", before.mappings, now.mappings, &text);
  AddDifference("lost mapping", now.mappings, before.mappings, &text);
  if (before.threads != now.threads) {
    text += std::to_string(now.threads) + " threads instead of " + std::to_string(before.threads) +
            "\n";
  }
  return text;
}

}  // namespace kvtier::faults
