#include "server/service/stats_history.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "google/protobuf/util/time_util.h"

namespace kvtier {
namespace {

using google::protobuf::util::TimeUtil;

struct Seen {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t bytes = 0;
};

v1::Counters CountersOf(const Seen& seen) {
  v1::Counters counters;
  counters.set_hits(seen.hits);
  counters.set_misses(seen.misses);
  counters.set_bytes_copied(seen.bytes);
  return counters;
}

// One cache of one group and one session, all with the same counters.
v1::GetStatsResponse Look(int64_t second, const Seen& seen, const std::string& session = "s") {
  v1::GetStatsResponse look;
  *look.mutable_time() = TimeUtil::SecondsToTimestamp(1000 + second);
  *look.mutable_counters() = CountersOf(seen);
  v1::CacheStats* cache = look.add_caches();
  cache->set_cache("c");
  *cache->mutable_counters() = CountersOf(seen);
  v1::GroupStats* group = cache->add_groups();
  group->set_group_index(0);
  *group->mutable_counters() = CountersOf(seen);
  v1::SessionCacheStats* part = cache->add_sessions();
  part->set_session_id(session);
  *part->mutable_counters() = CountersOf(seen);
  *part->add_groups() = *group;
  return look;
}

TEST(StatsHistory, BeforeTheFirstLookThereIsNoWindow) {
  v1::GetStatsResponse now = Look(0, {});
  StatsHistory().FillWindows(&now);
  EXPECT_FALSE(now.has_window());
  EXPECT_FALSE(now.caches(0).has_window());
}

TEST(StatsHistory, RatesAreOverTheTimeBetweenTwoLooks) {
  StatsHistory history;
  history.Record(Look(0, {10, 10, 100}));
  v1::GetStatsResponse now = Look(4, {40, 20, 900});
  history.FillWindows(&now);
  for (const v1::Window* window :
       {&now.window(), &now.caches(0).window(), &now.caches(0).groups(0).window(),
        &now.caches(0).sessions(0).window(), &now.caches(0).sessions(0).groups(0).window()}) {
    EXPECT_EQ(window->duration().seconds(), 4);
    EXPECT_DOUBLE_EQ(window->hits_per_second(), 7.5);
    EXPECT_DOUBLE_EQ(window->misses_per_second(), 2.5);
    EXPECT_DOUBLE_EQ(window->hit_rate(), 0.75);
    EXPECT_DOUBLE_EQ(window->bytes_copied_per_second(), 200);
  }
}

TEST(StatsHistory, NoLookupsNoHitRateButZeros) {
  StatsHistory history;
  history.Record(Look(0, {10, 10, 100}));
  v1::GetStatsResponse now = Look(1, {10, 10, 100});
  history.FillWindows(&now);
  EXPECT_FALSE(now.window().has_hit_rate());
  EXPECT_TRUE(now.window().has_hits_per_second());
  EXPECT_EQ(now.window().hits_per_second(), 0);
}

TEST(StatsHistory, ReachesBackAsFarAsItKeepsLooks) {
  StatsHistory history;
  for (int64_t second = 0; second < 100; ++second) history.Record(Look(second, {second, 0, 0}));
  v1::GetStatsResponse now = Look(100, {100, 0, 0});
  history.FillWindows(&now);
  EXPECT_EQ(now.window().duration().seconds(), StatsHistory::kLooks);
  EXPECT_DOUBLE_EQ(now.window().hits_per_second(), 1);
}

TEST(StatsHistory, WhatIsNewIsCountedFromItsBeginning) {
  StatsHistory history;
  history.Record(Look(0, {10, 0, 0}, "old"));
  v1::GetStatsResponse now = Look(2, {6, 0, 0}, "new");
  history.FillWindows(&now);
  EXPECT_DOUBLE_EQ(now.caches(0).sessions(0).window().hits_per_second(), 3);
  // A cache of the same name that began anew.
  EXPECT_DOUBLE_EQ(now.caches(0).window().hits_per_second(), 3);
}

TEST(StatsHistory, NonsenseOfAWorkerAndOfAClockGivesNoNonsense) {
  StatsHistory history;
  history.Record(Look(5, {-10, INT64_MIN, 0}));
  v1::GetStatsResponse now = Look(6, {20, INT64_MIN, 0});
  history.FillWindows(&now);
  EXPECT_DOUBLE_EQ(now.window().hits_per_second(), 20);
  EXPECT_DOUBLE_EQ(now.window().misses_per_second(), 0);
  now = Look(5, {});
  history.FillWindows(&now);
  EXPECT_FALSE(now.has_window());
}

}  // namespace
}  // namespace kvtier
