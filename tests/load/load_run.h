// One run of tests/load: daemon, workers, hostile peers, and the verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/benchmark/report.h"
#include "tests/e2e/daemon.h"
#include "tests/load/call_times.h"
#include "tests/load/children.h"
#include "tests/load/hostile.h"
#include "tests/load/watch.h"
#include "tests/load/worker.h"

namespace kvtier::load {

// Anonymous memory of the daemon may grow by so much a minute while the load does not change:
// 50 bytes for each of 10,000 requests.
inline constexpr double kSlopeMax = 500e3;
// With hostile peers its memory goes up and down by hundreds of megabytes, which no slope says
// anything about. What is left when they have gone is compared with what was left after the
// warm-up: as much as the daemon keeps of what was freed.
inline constexpr int64_t kHostileGrowthMax = int64_t{64} << 20;
// gRPC and the C library start and end threads of their own as they need them.
inline constexpr int64_t kOwnThreads = 2;
// Health must answer within it, whatever else goes on.
inline constexpr double kLivenessMaxUs = 2e6;
// A request may begin so long after its time, on a machine that others use as well: whoever is
// later does the work of an earlier minute.
inline constexpr double kLateMsMax = 60e3;

struct LoadOptions {
  absl::Duration load, warm_up;
  int32_t workers = 64, processes = 8, requests_per_minute = 10000;
  std::vector<std::string> hostile;  // kinds
  std::string json, commit;
};

Findings FindingsOf(const WorkerResult& result);
Findings FindingsOf(const HostileResult& result);

class LoadRun {
 public:
  explicit LoadRun(const LoadOptions& options);
  ~LoadRun();

  // Prints what came of it, and writes the JSON. True: nothing is wrong.
  bool Run();

 private:
  struct Phase {
    WorkerResult workers;
    std::vector<std::pair<std::string, Findings>> hostile;
    std::vector<Look> looks;
    int failed_processes = 0;
  };
  Phase RunPhase(const std::string& name, absl::Duration duration, CallTimes* times);
  void StartWorkers(const std::string& name, absl::Time begin, absl::Time end, Children* children);
  void StartHostile(const std::string& name, absl::Time end, Children* children);
  // Waits until no session and no connection of the phase is left; what the daemon then holds.
  ProcessSample Settle(const ProcessSample* before);
  void Judge(const Phase& phase, const ProcessSample& before, const ProcessSample& after,
             const CallTimes& times);
  // What the daemon has open, for whoever looks for what is left.
  void PrintDescriptors() const;
  void Demand(bool holds, const std::string& what);
  void Report(const Phase& phase, const ProcessSample& before, const ProcessSample& after,
              const CallTimes& times);
  std::string Summary(const Phase& phase, const ProcessSample& before,
                      const ProcessSample& after) const;
  double SlopeOf(const std::vector<Look>& looks) const;

  const LoadOptions options_;
  std::string folder_;
  e2e::Daemon daemon_;
  std::string tcp_address_;
  std::vector<std::string> complaints_;
};

}  // namespace kvtier::load
