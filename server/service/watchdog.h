// Calls for help when something takes longer than it may.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"

namespace kvtier {

class Watchdog {
 public:
  // Runs `on_expired` once, on a thread of its own, unless the watchdog is gone after `limit`.
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Watchdog>> Start(absl::Duration limit,
                                                         std::function<void()> on_expired);
  // Waits for `on_expired` if it runs.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  explicit Watchdog(std::function<void()> on_expired) : on_expired_(std::move(on_expired)) {}
  void Run(absl::Time deadline);

  const std::function<void()> on_expired_;
  Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  bool disarmed_ KVTIER_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace kvtier
