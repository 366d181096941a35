#include "server/session/stats_mirror.h"

#include "gtest/gtest.h"

namespace kvtier {
namespace {

StatsMirror::Reading Hits(int group, int64_t hits, int64_t sequence) {
  StatsMirror::Reading reading;
  reading.first_group = group;
  reading.blocks.resize(1);
  reading.blocks[0].sequence = sequence;
  reading.blocks[0].counts[static_cast<int>(Counter::kHits)] = hits;
  return reading;
}

TEST(StatsMirrorTest, ShowsTheLastLook) {
  StatsMirror mirror(2);
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 0);
  mirror.Arrive(Hits(1, 7, 4));
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 7);
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 0);
  mirror.Arrive(Hits(1, 6, 2));
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 7) << "counters never go down";
}

TEST(StatsMirrorTest, PassesOverTornCopiesButNotForEver) {
  StatsMirror mirror(1);
  for (int i = 0; i < 4; ++i) {
    mirror.Arrive(Hits(0, 5, 3));
    EXPECT_EQ(mirror.Get(0)[Counter::kHits], 0);
  }
  mirror.Arrive(Hits(0, 5, 3));
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 5);
  mirror.Arrive(Hits(0, 9, 5));
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 5) << "counting begins anew";
}

}  // namespace
}  // namespace kvtier
