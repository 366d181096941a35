// The index of a region against a map, and against memory that somebody else wrote over.
#include "kernels/cpu/owner_index.h"

#include <map>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/split_order.h"
#include "kernels/testing/random_steps.h"

namespace kvtier::cpu {
namespace {

using testing::Random;

class OwnerIndexTest : public ::testing::TestWithParam<int32_t> {
 protected:
  OwnerIndex Index() { return OwnerIndex(words_.data(), owners_.data(), hot_size_); }

  // Hot slot i is owned by what the map says, and nothing else is found.
  void ExpectFinds(const OwnerIndex& index) {
    std::map<int32_t, int32_t> owned;
    for (int32_t h = 0; h < hot_size_; ++h) {
      if (owners_[h] >= 0) owned[owners_[h]] = h;
    }
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const auto at = owned.find(slot);
      ASSERT_EQ(index.Find(slot), at == owned.end() ? kNone : at->second) << slot;
    }
  }

  // A slot that no hot slot owns.
  int32_t FreeSlot() {
    for (;;) {
      const int32_t slot = random_.Below(kSlots);
      if (std::find(owners_.begin(), owners_.end(), slot) == owners_.end()) return slot;
    }
  }

  static constexpr int32_t kSlots = 3000;
  const int32_t hot_size_ = GetParam();
  std::vector<uint16_t> words_ = std::vector<uint16_t>(RegionIndexLength(hot_size_), 0);
  std::vector<int32_t> owners_ = std::vector<int32_t>(hot_size_, kNone);
  Random random_{17};
};

TEST_P(OwnerIndexTest, FollowsItsOwnChangesAndThoseOfOthers) {
  for (int32_t step = 0; step < 60; ++step) {
    OwnerIndex index = Index();
    ASSERT_TRUE(index.Sync());
    ExpectFinds(index);
    for (int32_t i = random_.Below(hot_size_ + 1); i > 0; --i) {
      const int32_t hot_slot = random_.Below(hot_size_);
      owners_[hot_slot] = random_.OneIn(5) ? kNone : FreeSlot();
      index.SetOwner(hot_slot, owners_[hot_slot]);
      const int32_t owner = owners_[hot_slot];
      ASSERT_EQ(owner < 0 ? hot_slot : index.FindAgain(owner), hot_slot);
    }
    ExpectFinds(index);
    index.Finish();
    // Without the index: dropped, given away, exchanged.
    for (int32_t i = random_.Below(6); i > 0; --i) owners_[random_.Below(hot_size_)] = kNone;
    for (int32_t i = random_.Below(3); i > 0; --i) owners_[random_.Below(hot_size_)] = FreeSlot();
    std::swap(owners_[0], owners_[random_.Below(hot_size_)]);
  }
}

// What was found with one probe is what a whole search finds.
TEST_P(OwnerIndexTest, CandidatesAreHotSlots) {
  for (int32_t& owner : owners_) owner = FreeSlot();
  OwnerIndex index = Index();
  ASSERT_TRUE(index.Sync());
  int32_t found = 0;
  for (int32_t slot = -2; slot < kSlots; ++slot) {
    const uint16_t candidate = index.Candidate(slot);
    ASSERT_LT(candidate, hot_size_);
    if (index.OwnerOf(candidate) != slot || slot < 0) continue;
    ++found;
    ASSERT_EQ(index.Find(slot), candidate);
  }
  EXPECT_GE(found, hot_size_ / 2);
}

// Whatever is looked at side by side: what Candidate() and OwnerOf() say one by one.
TEST_P(OwnerIndexTest, MatchesAsOneByOne) {
  for (int32_t& owner : owners_) owner = FreeSlot();
  OwnerIndex index = Index();
  ASSERT_TRUE(index.Sync());
  constexpr int32_t kBase = 4000, kFirst = 70;
  for (const int32_t count : {0, 1, 15, 16, 17, 255, 256, 257, 600}) {
    std::vector<int32_t> slots(count), hot_rows, others;
    std::vector<uint8_t> hits(HotSlotNotes::kCount);
    for (int32_t& slot : slots) {
      slot = random_.OneIn(3) ? owners_[random_.Below(hot_size_)] : random_.Below(kSlots + 2) - 2;
    }
    for (int32_t i = 0; i < count; ++i) {
      const uint16_t candidate = index.Candidate(slots[i]);
      hot_rows.push_back(kBase + candidate);
      if (index.OwnerOf(candidate) == slots[i]) {
        hits[candidate] = 1;
      } else {
        others.push_back(kFirst + i);
      }
    }
    for (const int32_t lanes : {1, OwnerIndex::kMatchLanes}) {
      std::vector<int32_t> rows(count), list(count + OwnerIndex::kMatchLanes);
      std::vector<uint8_t> notes(HotSlotNotes::kCount);
      list.resize(index.Match(slots.data(), count,
                              {.base = kBase,
                               .first = kFirst,
                               .hot_rows = rows.data(),
                               .hits = notes.data(),
                               .others = list.data()},
                              lanes));
      notes.back() = 0;
      EXPECT_EQ(rows, hot_rows);
      EXPECT_EQ(list, others);
      EXPECT_EQ(notes, hits);
    }
  }
}

TEST_P(OwnerIndexTest, RefusesWhatOnlyCorruptionDoes) {
  for (int32_t& owner : owners_) owner = FreeSlot();
  const int32_t last = hot_size_ - 1;
  for (const int32_t wrong : {owners_[0], -2, INT32_MIN}) {
    if (wrong >= 0 && hot_size_ == 1) continue;
    OwnerIndex index = Index();
    ASSERT_TRUE(index.Sync());
    index.Finish();
    const int32_t right = std::exchange(owners_[last], wrong);
    EXPECT_FALSE(Index().Sync());
    EXPECT_FALSE(Index().Sync());
    owners_[last] = right;
    EXPECT_TRUE(Index().Sync());
  }
}

// A process that died in between has left anything at all.
TEST_P(OwnerIndexTest, UnfinishedIsBuiltAnew) {
  for (int32_t& owner : owners_) owner = FreeSlot();
  ASSERT_TRUE(Index().Sync());
  for (size_t w = kIndexHeaderWords; w < words_.size(); ++w) {
    words_[w] = static_cast<uint16_t>(random_.Next());
  }
  OwnerIndex index = Index();
  ASSERT_TRUE(index.Sync());
  ExpectFinds(index);
}

// Searches and changes in memory that others write over end, inside of it, and the next step knows.
TEST_P(OwnerIndexTest, AnyWordsAreHarmless) {
  for (int32_t round = 0; round < 50; ++round) {
    for (int32_t& owner : owners_) owner = random_.OneIn(8) ? kNone : FreeSlot();
    OwnerIndex index = Index();
    ASSERT_TRUE(index.Sync());
    for (int32_t i = random_.Below(40); i > 0; --i) {
      const int32_t at = random_.Below(static_cast<int32_t>(words_.size()) - kIndexHeaderWords);
      words_[kIndexHeaderWords + at] = static_cast<uint16_t>(random_.Next());
    }
    if (random_.OneIn(3)) std::fill(words_.begin() + kIndexHeaderWords, words_.end(), uint16_t{0});
    for (int32_t i = 0; i < 100; ++i) {
      const int32_t hot_slot = index.FindAgain(random_.Below(kSlots));
      ASSERT_TRUE(hot_slot >= kNone && hot_slot < hot_size_);
      ASSERT_LT(index.Candidate(random_.Below(kSlots)), hot_size_);
      const int32_t changed = random_.Below(hot_size_);
      owners_[changed] = random_.OneIn(4) ? kNone : FreeSlot();
      index.SetOwner(changed, owners_[changed]);
    }
    index.Finish();
    words_[0] = 0;
    ASSERT_TRUE(Index().Sync());
    ExpectFinds(Index());
  }
}

INSTANTIATE_TEST_SUITE_P(HotSizes, OwnerIndexTest, ::testing::Values(1, 7, 8, 40, 64, 129, 700));

class SplitOrderTest : public ::testing::TestWithParam<int32_t> {};  // lanes

TEST_P(SplitOrderTest, KeepsTheOrderOfBothParts) {
  HotSlotNotes notes;
  notes.Reserve();
  Random random(3);
  for (int32_t round = 0; round < 600; ++round) {  // stamps come round
    const int32_t hot_size = 1 + random.Below(100);
    std::vector<uint16_t> order(hot_size), expected_hits, expected_others;
    std::iota(order.begin(), order.end(), uint16_t{0});
    for (int32_t i = hot_size - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
    for (const uint16_t entry : order) {
      notes.hits[entry] = random.OneIn(2) ? 1 : 0;
      (notes.hits[entry] != 0 ? expected_hits : expected_others).push_back(entry);
    }
    std::vector<uint16_t> hits(hot_size + kSplitSlack), others(hits.size());
    const int32_t hit_count =
        SplitOrder(order.data(), hot_size, &notes, hits.data(), others.data(), GetParam());
    ASSERT_EQ(hit_count, std::ssize(expected_hits));
    hits.resize(hit_count);
    others.resize(hot_size - hit_count);
    ASSERT_EQ(hits, expected_hits);
    ASSERT_EQ(others, expected_others);
  }
}

TEST_P(SplitOrderTest, SeesWhatIsNoPermutation) {
  HotSlotNotes notes;
  notes.Reserve();
  for (const int32_t hot_size : {2, 9, 33, 70}) {
    std::vector<uint16_t> order(hot_size), hits(hot_size + kSplitSlack), others(hits.size());
    for (int32_t at = 0; at < hot_size; ++at) {
      for (const int32_t wrong : {(at + 1) % hot_size, hot_size, 32767, 65535}) {
        std::iota(order.begin(), order.end(), uint16_t{0});
        order[at] = static_cast<uint16_t>(wrong);
        EXPECT_EQ(
            SplitOrder(order.data(), hot_size, &notes, hits.data(), others.data(), GetParam()), -1);
      }
    }
    std::iota(order.begin(), order.end(), uint16_t{0});
    EXPECT_EQ(SplitOrder(order.data(), hot_size, &notes, hits.data(), others.data(), GetParam()),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, SplitOrderTest, ::testing::Values(1, 8, 32));

}  // namespace
}  // namespace kvtier::cpu
