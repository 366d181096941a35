// Looks at a daemon from outside while others use it: what its process holds, what its ledger says,
// and whether it still answers those who only ask how it is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/load/call_times.h"
#include "tests/load/growth.h"
#include "tests/load/process_sample.h"

namespace kvtier::load {

struct Look {
  double minutes = 0;  // since the watch began
  ProcessSample process;
  int64_t free_blocks = 0, sessions = 0, regions = 0;
};

// One look each interval, on a thread of its own. Each look asks for liveness twice: on a
// connection of long standing and on a new one, as a probe does.
class Watch {
 public:
  // `times` must outlive it.
  Watch(pid_t pid, std::string socket_path, absl::Duration interval, CallTimes* times);
  ~Watch();

  // Ends it; what was seen.
  std::vector<Look> End();
  // Questions without an answer, and the first of their errors. After End().
  int64_t errors() const { return errors_; }
  const std::string& first_error() const { return first_error_; }

 private:
  void Run();

  const pid_t pid_;
  const std::string socket_path_;
  const absl::Duration interval_;
  CallTimes* const times_;
  std::vector<Look> looks_;  // these four: of the thread, until it has ended
  int64_t errors_ = 0;
  std::string first_error_;
  void Note(bool ok, const std::string& what);

  std::mutex mutex_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

// One number of the looks.
template <typename Number>
std::vector<Point> PointsOf(const std::vector<Look>& looks, const Number& number) {
  std::vector<Point> points;
  for (const Look& look : looks) {
    points.push_back({look.minutes, static_cast<double>(number(look))});
  }
  return points;
}

}  // namespace kvtier::load
