#include "server/session/stats_mirror.h"

#include "gtest/gtest.h"
#include "kernels/stats_block.h"

namespace kvtier {
namespace {

StatsMirror::Reading Hits(int group, int64_t hits, int64_t missing = 0) {
  StatsMirror::Reading reading;
  reading.first_group = group;
  reading.blocks.resize(1);
  Counts counts;
  counts[Counter::kHits] = hits + missing;
  AddCounts(reading.blocks.data(), counts);
  reading.blocks[0].counts[static_cast<int>(Counter::kHits)] = hits;
  return reading;
}

TEST(StatsMirrorTest, ShowsTheLastLook) {
  StatsMirror mirror(2);
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 0);
  mirror.Arrive(Hits(1, 7));
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 7);
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 0);
  mirror.Arrive(Hits(1, 6));
  EXPECT_EQ(mirror.Get(1)[Counter::kHits], 7) << "counters never go down";
}

TEST(StatsMirrorTest, PassesOverTornCopiesButNotForEver) {
  StatsMirror mirror(1);
  for (int i = 0; i < 4; ++i) {
    mirror.Arrive(Hits(0, 5, /*missing=*/1));
    EXPECT_EQ(mirror.Get(0)[Counter::kHits], 0);
  }
  mirror.Arrive(Hits(0, 5, 1));
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 5);
  mirror.Arrive(Hits(0, 9, 1));
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 9) << "whoever is still there is dead";
  mirror.Arrive(Hits(0, 11, 2));
  EXPECT_EQ(mirror.Get(0)[Counter::kHits], 9) << "a second one is not";
}

}  // namespace
}  // namespace kvtier
