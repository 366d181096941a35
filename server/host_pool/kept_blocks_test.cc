// Blocks that a ledger keeps, and ledgers that go on from another's records.
#include "server/host_pool/kept_blocks.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/host_pool/block_ledger.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

::testing::AssertionResult Fails(const absl::Status& status, Code code, const std::string& reason) {
  if (status.code() == code && ErrorReasonOf(status) == reason) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << status << " [" << ErrorReasonOf(status) << "]";
}

TEST(KeptBlocks, AreInOrderOfAgeAndOfId) {
  KeptBlocks kept;
  for (const int32_t block : {5, 1, 9, 3}) kept.Add(block);
  kept.Add(5);
  EXPECT_EQ(kept.count(), 4);
  EXPECT_THAT(kept.List(0, 10), ElementsAre(1, 3, 5, 9));
  EXPECT_THAT(kept.List(2, 2), ElementsAre(3, 5));
  EXPECT_TRUE(kept.Remove(1));
  EXPECT_FALSE(kept.Remove(1));
  EXPECT_THAT(kept.TakeOldest(2), ElementsAre(5, 9));
  EXPECT_THAT(kept.TakeOldest(2), ElementsAre(3));
  EXPECT_THAT(kept.TakeOldest(2), IsEmpty());
}

// A ledger whose records another one adopts.
class KeptBlocksTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlocks = 8;
  std::unique_ptr<BlockLedger> Make(bool adopt) {
    return std::make_unique<BlockLedger>(
        "kv", kBlocks, 2,
        BlockRecords{
            .generations = generations_.data(), .held = held_.data(), .tags = tags_.data()},
        adopt);
  }
  static std::vector<int32_t> KeptOf(const BlockLedger& ledger) {
    std::vector<int32_t> ids;
    for (const auto& kept : ledger.ListKept(0, kBlocks)) ids.push_back(kept.block);
    return ids;
  }
  static void ExpectAllAreCounted(const BlockLedger& ledger) {
    EXPECT_EQ(ledger.free_count() + ledger.used_count() + ledger.kept_count() +
                  ledger.quarantined_count(),
              kBlocks);
  }

  std::vector<int32_t> generations_ = std::vector<int32_t>(kBlocks, 7);
  std::vector<uint8_t> held_ = std::vector<uint8_t>(kBlocks, 7);
  std::vector<int64_t> tags_ = std::vector<int64_t>(kBlocks, 7);
};

TEST_F(KeptBlocksTest, BlocksOfAnEndedHolderWaitToBeTakenUpAgain) {
  const auto ledger = Make(false);
  ASSERT_TRUE(ledger->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger->Assign(1, 3, {}, {}, {10, 11, 12}).ok());
  const auto released = ledger->RemoveHolder(1, /*keep=*/true);
  EXPECT_THAT(KeptOf(*ledger), IsEmpty()) << "enqueued work may still read them";
  ledger->ReleaseQuarantine(released.quarantine);
  EXPECT_THAT(KeptOf(*ledger), ElementsAre(0, 1, 2));
  EXPECT_EQ(ledger->ListKept(1, 1).front().tag, 11);
  EXPECT_EQ(ledger->ListKept(1, 1).front().generation, 1);
  ExpectAllAreCounted(*ledger);

  ASSERT_TRUE(ledger->AddHolder(2, 0).ok());
  EXPECT_TRUE(
      Fails(ledger->Assign(2, 0, {1}, {}).status(), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(Fails(ledger->Assign(2, 0, {1}, {2}).status(), Code::kFailedPrecondition,
                    "GENERATION_STALE"));
  const auto taken = ledger->Assign(2, 0, {1, 2}, {1, 1});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(taken->recycled, IsEmpty());
  EXPECT_THAT(KeptOf(*ledger), ElementsAre(0));
  ExpectAllAreCounted(*ledger);
  // As if it had not been.
  ledger->ReleaseQuarantine(ledger->Undo(2, *taken).quarantine);
  EXPECT_THAT(KeptOf(*ledger), ElementsAre(0, 1, 2));
  ExpectAllAreCounted(*ledger);
}

TEST_F(KeptBlocksTest, TheOldestGiveWay) {
  const auto ledger = Make(false);
  for (const int64_t holder : {1, 2}) {
    ASSERT_TRUE(ledger->AddHolder(holder, 0).ok());
    ASSERT_TRUE(ledger->Assign(holder, 3, {}, {}).ok());
  }
  for (const int64_t holder : {2, 1}) {
    ledger->ReleaseQuarantine(ledger->RemoveHolder(holder, /*keep=*/true).quarantine);
  }
  ASSERT_EQ(ledger->kept_count(), 6);
  ASSERT_TRUE(ledger->AddHolder(3, 0).ok());
  ASSERT_EQ(ledger->AvailableTo(3), 8);
  // Two are free, and the third is of holder 2's, which were kept first.
  const auto assigned = ledger->Assign(3, 3, {}, {});
  ASSERT_TRUE(assigned.ok()) << assigned.status();
  EXPECT_EQ(assigned->recycled.size(), 1U);
  EXPECT_EQ(ledger->kept_count(), 5);
  ledger->SetKeptMax(3);
  EXPECT_THAT(KeptOf(*ledger), ElementsAre(0, 1, 2));
  // Reserved blocks are free, not kept.
  ASSERT_TRUE(ledger->AddHolder(4, 4).ok());
  EXPECT_EQ(ledger->kept_count(), 1);
  EXPECT_TRUE(Fails(ledger->AddHolder(5, 2), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  ExpectAllAreCounted(*ledger);
}

TEST_F(KeptBlocksTest, ProtectedOnesAreGivenToNobodyButWhoKnowsThem) {
  const auto ledger = Make(false);
  ASSERT_TRUE(ledger->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger->Assign(1, 6, {}, {}).ok());
  ledger->ReleaseQuarantine(ledger->RemoveHolder(1, /*keep=*/true).quarantine);
  ledger->SetKeptProtected(true);
  ASSERT_TRUE(ledger->AddHolder(2, 0).ok());
  EXPECT_TRUE(
      Fails(ledger->Assign(2, 3, {}, {}).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  ASSERT_TRUE(ledger->Assign(2, 2, {5}, {1}).ok());
  ledger->SetKeptMax(0);
  EXPECT_EQ(ledger->kept_count(), 5);
  ledger->SetKeptProtected(false);
  ledger->SetKeptMax(0);
  EXPECT_EQ(ledger->kept_count(), 0);
  ExpectAllAreCounted(*ledger);
}

TEST_F(KeptBlocksTest, AdoptedIsWhatWasHeld) {
  auto first = Make(false);
  EXPECT_THAT(held_, ::testing::Each(0));
  ASSERT_TRUE(first->AddHolder(1, 0).ok());
  ASSERT_TRUE(first->Assign(1, 4, {}, {}, {1, 2, 3, 4}).ok());
  const auto freed = first->Free(1, {1});
  ASSERT_TRUE(freed.ok());
  // Killed here: one block in quarantine, three held.
  const auto second = Make(true);
  EXPECT_THAT(KeptOf(*second), ElementsAre(0, 2, 3));
  EXPECT_EQ(second->ListKept(3, 1).front().tag, 4);
  EXPECT_EQ(second->free_count(), 5);
  ASSERT_TRUE(second->AddHolder(1, 0).ok());
  const auto assigned = second->Assign(1, 5, {3}, {1});
  ASSERT_TRUE(assigned.ok()) << assigned.status();
  // Block 1 had a tenant, whose rows may be in somebody's hot buffer.
  EXPECT_THAT(assigned->recycled, ElementsAre(1));
  EXPECT_EQ(generations_[1], 2);
  ExpectAllAreCounted(*second);
}

TEST_F(KeptBlocksTest, AfterTheRecordsAreClosedTheyStay) {
  auto first = Make(false);
  ASSERT_TRUE(first->AddHolder(1, 0).ok());
  ASSERT_TRUE(first->Assign(1, 4, {}, {}).ok());
  first->StopRecording();
  first->ReleaseQuarantine(first->RemoveHolder(1).quarantine);
  EXPECT_EQ(first->free_count(), kBlocks);
  EXPECT_EQ(Make(true)->kept_count(), 4);
}

}  // namespace
}  // namespace kvtier
