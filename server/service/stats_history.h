// The latest statistics, for rates: what happened in the last few seconds.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"

namespace kvtier {

// Thread-safe.
class StatsHistory {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  // A window reaches back so many looks, once there are as many.
  static constexpr size_t kLooks = 10;

  // A look at all caches; once every kInterval.
  void Record(v1::GetStatsResponse look) KVTIER_EXCLUDES(mutex_);
  // Fills every Window of `now`, which may list fewer caches. Leaves them absent before the first
  // look.
  void FillWindows(v1::GetStatsResponse* now) const KVTIER_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;  // rank: a leaf
  std::deque<std::shared_ptr<const v1::GetStatsResponse>> looks_ KVTIER_GUARDED_BY(mutex_);
};

// Calls `look` every StatsHistory::kInterval, on a thread of its own, from now on.
class StatsSampler {
 public:
  static absl::StatusOr<std::unique_ptr<StatsSampler>> Start(std::function<void()> look);
  ~StatsSampler();

 private:
  explicit StatsSampler(std::function<void()> look) : look_(std::move(look)) {}
  void Run() KVTIER_EXCLUDES(mutex_);

  const std::function<void()> look_;
  Mutex mutex_;  // rank: a leaf
  CondVar changed_;
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace kvtier
