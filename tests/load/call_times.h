// How long calls took, by name: every one of them, so that percentiles are exact.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvtier::load {

// Thread-safe. Times are microseconds.
class CallTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // Runs `call` and notes how long it took, whatever it returned.
  template <typename Call>
  auto Of(const char* name, const Call& call) {
    const Clock::time_point begin = Clock::now();
    auto result = call();
    Add(name, std::chrono::duration<float, std::micro>(Clock::now() - begin).count());
    return result;
  }

  void Add(const std::string& name, float us);
  void Merge(const CallTimes& other);
  std::map<std::string, std::vector<float>> all() const;

  // A file that another process reads.
  absl::Status WriteTo(const std::string& path) const;
  absl::Status MergeFrom(const std::string& path);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<float>> us_;  // guarded by mutex_
};

}  // namespace kvtier::load
