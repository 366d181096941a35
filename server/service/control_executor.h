// A few threads for verbs that may wait, with a bounded queue in front.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"

namespace kvtier {

// A queue without an end would turn overload into calls whose client has long gone. Here the
// call that finds the queue full is told so at once.
//
// Neither work that waits for one cache's device streams, which may stand still, nor work of one
// caller, who may have many caches, nor work that may last ever has all threads or all places of
// the queue: what comes for another cache, of somebody else, and is soon done, passes it.
//
// Thread-safe. Work that was taken runs exactly once, also while stopping: it has a call to
// finish. It must look by itself whether it is still wanted.
class ControlExecutor {
 public:
  struct Options {
    // 0: work runs by RunOne alone, for a simulation.
    int32_t threads = kControlThreads;
    int32_t queue_max = kControlQueueMax;
  };
  // Whom work counts for.
  struct Account {
    std::string cache;      // whose device streams it may wait for
    std::string caller;     // whose call it is: a process
    bool may_last = false;  // for minutes, as attaching to a cache that is made may
  };

  // Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED where the system has no thread left.
  static absl::StatusOr<std::unique_ptr<ControlExecutor>> Start(const Options& options);
  // Runs what is queued, then joins.
  ~ControlExecutor();
  ControlExecutor(const ControlExecutor&) = delete;
  ControlExecutor& operator=(const ControlExecutor&) = delete;

  // Never waits. Errors, and then `work` never runs: RESOURCE_EXHAUSTED / LIMIT_REACHED with a
  // hint when to try again.
  absl::Status Submit(const Account& account, std::function<void()> work);

  // The oldest work that may run now, on the calling thread. False: there is none.
  bool RunOne();

  // Work that no thread has taken yet.
  int32_t queue_depth() const {
    MutexLock lock(&mutex_);
    return static_cast<int32_t>(queue_.size());
  }
  int32_t queue_max() const { return options_.queue_max; }

 private:
  struct Queued {
    Account account;
    std::function<void()> work;
  };
  // Work of one cache, of one caller, or all that may last.
  struct Use {
    int32_t running = 0, queued = 0;
  };
  using Uses = std::map<std::string, Use>;  // none is none

  explicit ControlExecutor(const Options& options) : options_(options) {}
  void Run();
  // What one caller may have at a time: where there are two, something is left to others.
  static int32_t ShareOfCaller(int32_t all) { return std::max(1, all - std::max(1, all / 8)); }
  // And one cache: something is left to its callers' other caches as well.
  static int32_t ShareOfCache(int32_t all) {
    return std::max(1, std::min(all - std::max(1, all / 4), ShareOfCaller(all) - 1));
  }
  // And all that may last, of whomever.
  static int32_t ShareOfLasting(int32_t all) { return std::max(1, all / 2); }
  static Use UseOf(const Uses& uses, const std::string& name);
  absl::Status CheckRoom(const Account& account) const KVTIER_REQUIRES(mutex_);
  bool MayRun(const Account& account) const KVTIER_REQUIRES(mutex_);
  // Adds to what the account's cache and caller use.
  void Count(const Account& account, int32_t running, int32_t queued) KVTIER_REQUIRES(mutex_);
  // Takes the oldest work that may have a thread; false: there is none.
  bool TakeLocked(Queued* taken) KVTIER_REQUIRES(mutex_);
  // Runs it, and then its cache and its caller have a thread less.
  void RunTaken(Queued taken) KVTIER_EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  std::deque<Queued> queue_ KVTIER_GUARDED_BY(mutex_);
  Uses of_cache_ KVTIER_GUARDED_BY(mutex_), of_caller_ KVTIER_GUARDED_BY(mutex_);
  Use lasting_ KVTIER_GUARDED_BY(mutex_);
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace kvtier
