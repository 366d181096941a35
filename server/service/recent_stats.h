// What several viewers of statistics share: who looks soon after another gets what that one got.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe.
class RecentStats {
 public:
  using Stats = std::shared_ptr<const v1::GetStatsResponse>;

  // Nobody gets what is as old as that.
  explicit RecentStats(absl::Duration age_max) : age_max_(age_max) {}

  // Those of `cache`, from `read` unless they are at hand. Errors are those of `read`, and nobody
  // else's. `read` runs without a lock: who comes meanwhile reads for himself.
  absl::StatusOr<Stats> Get(const std::string& cache, absl::Time now,
                            const std::function<absl::StatusOr<v1::GetStatsResponse>()>& read);

 private:
  struct Look {
    absl::Time time;  // when it began
    Stats stats;
  };

  // A clock that was set back makes nothing young.
  bool IsRecent(const Look& look, absl::Time now) const {
    return look.time <= now && now - look.time < age_max_;
  }

  const absl::Duration age_max_;
  Mutex mutex_;                                                  // rank: a leaf
  std::map<std::string, Look> looks_ KVTIER_GUARDED_BY(mutex_);  // by cache
};

}  // namespace kvtier
