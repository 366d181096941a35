// What aged scores save over LRU on the recorded traces: exact misses of every document.
#include "tests/traces/eviction.h"

#include "gtest/gtest.h"
#include "tests/traces/documents.h"

namespace kvtier::traces {
namespace {

struct DocumentMisses {
  int64_t lru, aged;
};

// In the order of kDocuments.
constexpr std::array<DocumentMisses, 6> kHot512 = {{{31416, 27660},
                                                    {37799, 34469},
                                                    {38104, 35838},
                                                    {38699, 33744},
                                                    {30849, 27530},
                                                    {35368, 32374}}};
constexpr std::array<DocumentMisses, 6> kHot1024 = {{{16517, 15789},
                                                     {21821, 20676},
                                                     {25232, 24112},
                                                     {19560, 18392},
                                                     {17905, 17264},
                                                     {21117, 20102}}};

// Returns the sums.
DocumentMisses ExpectMisses(int32_t hot_size, const std::array<DocumentMisses, 6>& expected) {
  DocumentMisses sum = {0, 0};
  const absl::StatusOr<std::vector<client::Trace>> traces = LoadDocuments();
  EXPECT_TRUE(traces.ok()) << traces.status();
  for (size_t d = 0; traces.ok() && d < kDocuments.size(); ++d) {
    const int64_t lru = MissesOf((*traces)[d], hot_size, EvictionPolicy::kLru).all;
    const int64_t aged = MissesOf((*traces)[d], hot_size, EvictionPolicy::kAged).all;
    EXPECT_EQ(lru, expected[d].lru) << kDocuments[d];
    EXPECT_EQ(aged, expected[d].aged) << kDocuments[d];
    EXPECT_LT(aged, lru) << kDocuments[d];
    sum.lru += lru;
    sum.aged += aged;
  }
  return sum;
}

TEST(Eviction, MissesWithTwiceTopK) {
  const DocumentMisses sum = ExpectMisses(2 * kTopK, kHot512);
  EXPECT_EQ(sum.lru, kMisses);
  EXPECT_EQ(sum.aged, kAgedMisses);  // 9.7 % fewer
}

TEST(Eviction, MissesWithFourTimesTopK) {
  const DocumentMisses sum = ExpectMisses(4 * kTopK, kHot1024);
  EXPECT_EQ(sum.lru, 122152);
  EXPECT_EQ(sum.aged, 116335);  // 4.8 % fewer
}

}  // namespace
}  // namespace kvtier::traces
