// How the warps of a row's blocks share its misses: each exactly one warp's, for all numbers of
// blocks.
#include "kernels/cuda/shares.cuh"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/simt/simt.h"

namespace kvtier::cuda {
namespace {

using Ints = std::vector<int32_t>;

// What a row's warps find out, block by block.
struct Found {
  Ints first, place;  // [copying blocks * warps]
  Ints rest;          // Rest(u) for each u
};

Found Share(const Ints& missing, int32_t early, int32_t late, bool busy_first) {
  const auto warps = static_cast<int32_t>(missing.size());
  const auto of_lane = [&] { return Lane() < warps ? missing[Lane()] : 0; };
  Found found;
  for (int32_t turn = 0; turn < early + late; ++turn) {
    Ints first(warps), place(warps);
    EXPECT_TRUE(simt::Run({1, static_cast<unsigned>(warps) * kWarpThreads, 0}, [&] {
      const Shares shares(of_lane(), early);
      first[Warp()] = shares.First(turn);
      place[Warp()] = shares.Place(turn, late, busy_first);
    }));
    found.first.insert(found.first.end(), first.begin(), first.end());
    found.place.insert(found.place.end(), place.begin(), place.end());
  }
  EXPECT_TRUE(simt::Run({1, static_cast<unsigned>(warps) * kWarpThreads, 0}, [&] {
    const Shares shares(of_lane(), early);
    for (int32_t u = 0; u < shares.rest(); ++u) {
      const int32_t position = shares.Rest(u);
      if (Thread() == 0) found.rest.push_back(position);
    }
  }));
  return found;
}

Ints UpTo(int64_t end) {
  Ints values(static_cast<size_t>(end));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(SharesTest, EachMissIsOneWarpsAndEachWarpHasATurn) {
  uint64_t state = 1;
  for (int32_t round = 0; round < 60; ++round) {
    for (const int32_t warps : {1, 3, 32}) {
      Ints missing(warps);
      for (int32_t& count : missing) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        count = static_cast<int32_t>(state >> 33) % (round % 3 == 0 ? 3 : 20);
      }
      const int32_t all = std::accumulate(missing.begin(), missing.end(), 0);
      const int32_t early = Ints{1, 2, 6}[round % 3], late = round / 3 % 3;
      const Found found = Share(missing, early, late, round % 2 == 0);
      Ints taken = found.rest;
      std::copy_if(found.first.begin(), found.first.end(), std::back_inserter(taken),
                   [](int32_t first) { return first != kNone; });
      std::sort(taken.begin(), taken.end());
      EXPECT_EQ(taken, UpTo(all)) << "round " << round << ", " << warps << " warps";
      Ints places = found.place;
      std::sort(places.begin(), places.end());
      EXPECT_EQ(places, UpTo((early + late) * warps)) << "round " << round << ", " << warps;
    }
  }
}

TEST(SharesTest, IdleWarpsComeFirstThenLateBlocksThenBusyWarps) {
  // Two early blocks and a late one, of two warps: warp 0 misses five, warp 1 none.
  const Found found = Share({5, 0}, 2, 1, false);
  EXPECT_EQ(found.first, (Ints{0, kNone, 1, kNone, kNone, kNone}));
  EXPECT_EQ(found.rest, (Ints{2, 3, 4}));
  EXPECT_EQ(found.place, (Ints{4, 0, 5, 1, 2, 3}));
  EXPECT_EQ(Share({5, 0}, 2, 1, true).place, (Ints{2, 0, 3, 1, 4, 5}));
}

TEST(SharesTest, WithoutEarlyBlocksAllIsRest) {
  const Found found = Share({2, 1}, 0, 1, false);
  EXPECT_EQ(found.first, (Ints{kNone, kNone}));
  EXPECT_EQ(found.rest, (Ints{0, 1, 2}));
  EXPECT_EQ(found.place, (Ints{0, 1}));
}

}  // namespace
}  // namespace kvtier::cuda
