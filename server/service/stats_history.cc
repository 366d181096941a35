#include "server/service/stats_history.h"

#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "google/protobuf/util/time_util.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

using google::protobuf::util::TimeUtil;

// Rates between two looks.
class Rates {
 public:
  explicit Rates(google::protobuf::Duration duration)
      : duration_(std::move(duration)),
        seconds_(static_cast<double>(TimeUtil::DurationToNanoseconds(duration_)) / 1e9) {}

  // `before` null: it was not there.
  v1::Window Between(const v1::Counters* before, const v1::Counters& now) const {
    v1::Window window;
    *window.mutable_duration() = duration_;
    const v1::Counters& from = before == nullptr ? v1::Counters::default_instance() : *before;
    const double hits = Rise(from.hits(), now.hits());
    const double misses = Rise(from.misses(), now.misses());
    window.set_steps_per_second(Rise(from.steps(), now.steps()) / seconds_);
    window.set_hits_per_second(hits / seconds_);
    window.set_misses_per_second(misses / seconds_);
    if (hits + misses > 0) window.set_hit_rate(hits / (hits + misses));
    window.set_rows_copied_per_second(Rise(from.rows_copied(), now.rows_copied()) / seconds_);
    window.set_bytes_copied_per_second(Rise(from.bytes_copied(), now.bytes_copied()) / seconds_);
    window.set_backed_up_rows_per_second(Rise(from.backed_up_rows(), now.backed_up_rows()) /
                                         seconds_);
    window.set_backed_up_bytes_per_second(Rise(from.backed_up_bytes(), now.backed_up_bytes()) /
                                          seconds_);
    window.set_evictions_per_second(Rise(from.evictions(), now.evictions()) / seconds_);
    return window;
  }

 private:
  // A counter that fell began anew (a cache of the same name), or a worker wrote nonsense.
  static double Rise(int64_t from, int64_t to) {
    if (to < 0) return 0;
    return static_cast<double>(from < 0 || from > to ? to : to - from);
  }

  const google::protobuf::Duration duration_;
  const double seconds_;
};

template <typename Entry, typename Key>
const Entry* Find(const google::protobuf::RepeatedPtrField<Entry>* entries, const Key& is_it) {
  if (entries == nullptr) return nullptr;
  for (const Entry& entry : *entries) {
    if (is_it(entry)) return &entry;
  }
  return nullptr;
}

// For CacheStats and SessionCacheStats.
template <typename Stats>
void FillEntry(const Rates& rates, const Stats* before, Stats* now) {
  *now->mutable_window() =
      rates.Between(before == nullptr ? nullptr : &before->counters(), now->counters());
  for (v1::GroupStats& group : *now->mutable_groups()) {
    const v1::GroupStats* earlier =
        Find(before == nullptr ? nullptr : &before->groups(),
             [&](const v1::GroupStats& each) { return each.group_index() == group.group_index(); });
    *group.mutable_window() =
        rates.Between(earlier == nullptr ? nullptr : &earlier->counters(), group.counters());
  }
}

}  // namespace

void StatsHistory::Record(v1::GetStatsResponse look) {
  auto shared = std::make_shared<const v1::GetStatsResponse>(std::move(look));
  MutexLock lock(&mutex_);
  looks_.push_back(std::move(shared));
  if (looks_.size() > kLooks) looks_.pop_front();
}

void StatsHistory::FillWindows(v1::GetStatsResponse* now) const {
  std::shared_ptr<const v1::GetStatsResponse> before;
  {
    MutexLock lock(&mutex_);
    if (looks_.empty()) return;
    before = looks_.front();
  }
  const google::protobuf::Duration duration = now->time() - before->time();
  // No rate over no time, nor where the clock was set back.
  if (TimeUtil::DurationToNanoseconds(duration) <= 0) return;
  const Rates rates(duration);
  *now->mutable_window() = rates.Between(&before->counters(), now->counters());
  for (v1::CacheStats& cache : *now->mutable_caches()) {
    const v1::CacheStats* earlier = Find(&before->caches(), [&](const v1::CacheStats& each) {
      return each.cache() == cache.cache();
    });
    FillEntry(rates, earlier, &cache);
    for (v1::SessionCacheStats& session : *cache.mutable_sessions()) {
      FillEntry(rates,
                Find(earlier == nullptr ? nullptr : &earlier->sessions(),
                     [&](const v1::SessionCacheStats& each) {
                       return each.session_id() == session.session_id();
                     }),
                &session);
    }
  }
}

absl::StatusOr<std::unique_ptr<StatsSampler>> StatsSampler::Start(std::function<void()> look) {
  std::unique_ptr<StatsSampler> sampler(new StatsSampler(std::move(look)));
  KVTIER_ASSIGN_OR_RETURN(sampler->thread_,
                          Thread::Start("kv-stats", [raw = sampler.get()] { raw->Run(); }));
  return sampler;
}

StatsSampler::~StatsSampler() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void StatsSampler::Run() {
  while (true) {
    look_();
    const absl::Time next = absl::Now() + StatsHistory::kInterval;
    MutexLock lock(&mutex_);
    while (!stopping_ && absl::Now() < next) changed_.WaitFor(&mutex_, next - absl::Now());
    if (stopping_) return;
  }
}

}  // namespace kvtier
