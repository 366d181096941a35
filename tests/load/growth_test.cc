#include "tests/load/growth.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier::load {
namespace {

using ::testing::SizeIs;

TEST(Slope, OfALine) {
  const std::vector<Point> points = {{0, 5}, {1, 8}, {2, 11}, {4, 17}};
  EXPECT_DOUBLE_EQ(SlopeOf(points), 3);
}

TEST(Slope, NoiseAboutALevelIsNone) {
  const std::vector<Point> points = {{0, 10}, {1, 12}, {2, 10}, {3, 12}, {4, 10}};
  EXPECT_NEAR(SlopeOf(points), 0, 1e-12);
}

TEST(Slope, OfTooFewPointsIsNone) {
  EXPECT_EQ(SlopeOf({}), 0);
  const std::vector<Point> one = {{1, 7}}, same = {{1, 7}, {1, 9}};
  EXPECT_EQ(SlopeOf(one), 0);
  EXPECT_EQ(SlopeOf(same), 0);
}

TEST(Slope, WarmUpIsLeftOut) {
  const std::vector<Point> points = {{0, 0}, {0.5, 100}, {1, 100}, {2, 100}};
  EXPECT_GT(SlopeOf(points), 0);
  EXPECT_THAT(After(points, 0.5), SizeIs(3));
  EXPECT_EQ(SlopeOf(After(points, 0.5)), 0);
  EXPECT_THAT(After(points, 9), SizeIs(0));
}

}  // namespace
}  // namespace kvtier::load
