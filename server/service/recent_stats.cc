#include "server/service/recent_stats.h"

#include <utility>

namespace kvtier {

absl::StatusOr<RecentStats::Stats> RecentStats::Get(
    const std::string& cache, absl::Time now,
    const std::function<absl::StatusOr<v1::GetStatsResponse>()>& read) {
  {
    MutexLock lock(&mutex_);
    const auto found = looks_.find(cache);
    if (found != looks_.end() && IsRecent(found->second, now)) return found->second.stats;
  }
  absl::StatusOr<v1::GetStatsResponse> fresh = read();
  if (!fresh.ok()) return fresh.status();
  auto stats = std::make_shared<const v1::GetStatsResponse>(*std::move(fresh));
  MutexLock lock(&mutex_);
  // No cache's stay for longer than somebody looks.
  std::erase_if(looks_, [&](const auto& look) { return !IsRecent(look.second, now); });
  looks_[cache] = {now, stats};
  return stats;
}

}  // namespace kvtier
