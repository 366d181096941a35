// Worker processes that are killed in a phase of their choice (victim_main.cc), and what a daemon
// uses, to see that all of it comes back.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "tests/e2e/daemon.h"

namespace kvtier::testing {

// The phases that victim_main.cc knows. Those that repeat a call say a byte after each.
inline constexpr const char* kVictimPhases[] = {
    "connected",  // no call yet
    "opened",     // a session, and nothing else
    "tokens",     // attached, its descriptors asked for and not taken
    "attached",   // a cache, and nothing else
    "attach",     // attaches and detaches, again and again
    "admit",     "assign", "invalidate",  "list_kept", "swap_in",
    "replay",    "backup", "wait_ticket", "run_steps",
    "between",  // a swap-in with a newest row that is not backed up
    "graph",    // steps in its own process; on a GPU it replays CUDA graphs
    "append",   // the same with backups
    "caches",   // makes and ends caches, again and again
};

class Victim {
 public:
  Victim(const std::string& socket_path, const std::string& phase);
  ~Victim();
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  // Waits until it is in its phase and has made `calls` calls there. False: it ended.
  bool WaitForCalls(int calls);
  // kill -9; gone when this returns.
  void Kill();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

struct Usage {
  int32_t sessions = 0;
  int64_t pool_bytes = 0, device_bytes = 0;  // as the daemon says
  int64_t free_gpu_bytes = 0;                // as the driver says; 0 without a GPU
  int64_t descriptors = 0, threads = 0;      // of the daemon's process
};

// Empty: what the test is built for is here (with a GPU: this process has a context on it).
std::string WhyNoDevice();
extern const char* const kBackendName;  // for --backend

Usage UsageOf(e2e::Daemon& daemon);
std::string Describe(const Usage& usage);
// Waits until nothing is used beyond `baseline`. The time since `start`; infinite if it never was.
absl::Duration TimeUntilBack(e2e::Daemon& daemon, const Usage& baseline, absl::Time start);

}  // namespace kvtier::testing
