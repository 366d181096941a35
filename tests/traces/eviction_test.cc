// What aged scores and kept rows save over LRU on the recorded traces: exactly the rows that cross
// PCIe of every document.
#include "tests/traces/eviction.h"

#include "gtest/gtest.h"
#include "tests/traces/documents.h"

namespace kvtier::traces {
namespace {

struct DocumentMisses {
  int64_t lru, aged;
};

// In the order of kDocuments.
constexpr std::array<DocumentMisses, 6> kHot512 = {{{31416, 26687},
                                                    {37799, 33490},
                                                    {38104, 34836},
                                                    {38699, 32737},
                                                    {30849, 26542},
                                                    {35368, 31380}}};
constexpr std::array<DocumentMisses, 6> kHot1024 = {{{16517, 14816},
                                                     {21821, 19697},
                                                     {25232, 23110},
                                                     {19560, 17385},
                                                     {17905, 16276},
                                                     {21117, 19108}}};

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
  EXPECT_EQ(sum.aged, kAgedMisses - kAgedKept);  // 12.5 % fewer
}

TEST(Eviction, MissesWithFourTimesTopK) {
  const DocumentMisses sum = ExpectMisses(4 * kTopK, kHot1024);
  EXPECT_EQ(sum.lru, 122152);
  EXPECT_EQ(sum.aged, 110392);  // 9.6 % fewer
}

}  // namespace
}  // namespace kvtier::traces
