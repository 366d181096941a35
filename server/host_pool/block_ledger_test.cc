#include "server/host_pool/block_ledger.h"

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

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

// A ledger whose quarantine ends at once, unless a test says otherwise.
class BlockLedgerTest : public ::testing::Test {
 protected:
  void Make(int32_t block_count, int32_t neighbourhood_blocks = 1) {
    generations_.assign(block_count, 0);
    ledger_ =
        std::make_unique<BlockLedger>("kv", block_count, neighbourhood_blocks, generations_.data());
  }
  std::vector<int32_t> Assign(int64_t holder, int32_t count,
                              const std::vector<int32_t>& shared = {}) {
    const auto assigned = ledger_->Assign(holder, count, shared, {});
    EXPECT_TRUE(assigned.ok()) << assigned.status();
    return assigned.ok() ? assigned->block_ids : std::vector<int32_t>();
  }
  absl::Status Free(int64_t holder, const std::vector<int32_t>& blocks) {
    const auto released = ledger_->Free(holder, blocks);
    if (released.ok()) ledger_->ReleaseQuarantine(released->quarantine);
    return released.status();
  }
  int32_t Remove(int64_t holder) {
    const BlockLedger::Released released = ledger_->RemoveHolder(holder);
    ledger_->ReleaseQuarantine(released.quarantine);
    return released.block_count;
  }
  void ExpectUnchanged(int32_t free, int32_t used) const {
    EXPECT_EQ(ledger_->free_count(), free);
    EXPECT_EQ(ledger_->used_count(), used);
  }

  std::vector<int32_t> generations_;
  std::unique_ptr<BlockLedger> ledger_;
};

TEST_F(BlockLedgerTest, D07_DoubleFree) {
  Make(8);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  EXPECT_THAT(Assign(1, 3), ElementsAre(0, 1, 2));
  EXPECT_TRUE(Free(1, {1}).ok());
  EXPECT_TRUE(Fails(Free(1, {1}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  EXPECT_EQ(ledger_->free_count(), 6);
  // Freeing the request frees exactly 0 and 2.
  EXPECT_EQ(Remove(1), 2);
  EXPECT_EQ(ledger_->free_count(), 8);
  EXPECT_TRUE(Fails(Free(2, {99}), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  EXPECT_TRUE(Fails(Free(2, {-1}), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));

  ASSERT_TRUE(ledger_->AddHolder(3, 0).ok());
  const std::vector<int32_t> foreign = Assign(3, 1);
  EXPECT_TRUE(Fails(Free(2, foreign), Code::kPermissionDenied, "BLOCK_FOREIGN"));
  EXPECT_EQ(Remove(3), 1);

  std::set<int32_t> ids;
  for (int i = 0; i < 8; ++i) ids.insert(Assign(2, 1).front());
  EXPECT_EQ(ids.size(), 8u);
}

TEST_F(BlockLedgerTest, D08_Exhaustion) {
  Make(4);
  for (int64_t holder = 1; holder <= 3; ++holder) {
    ASSERT_TRUE(ledger_->AddHolder(holder, 0).ok());
  }
  Assign(1, 3);
  EXPECT_TRUE(
      Fails(ledger_->Assign(2, 2, {}, {}).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_EQ(ledger_->free_count(), 1) << "no partial take";
  Assign(2, 1);
  const absl::Status full = ledger_->Assign(3, 1, {}, {}).status();
  EXPECT_TRUE(Fails(full, Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_TRUE(RetryDelayOf(full).has_value());
  const ErrorMetadata metadata = ErrorMetadataOf(full);
  EXPECT_EQ(metadata.at("requested"), "1");
  EXPECT_EQ(metadata.at("free"), "0");
  EXPECT_EQ(metadata.at("limit"), "4");
  Remove(1);
  EXPECT_EQ(ledger_->free_count(), 3);
  Assign(3, 1);
  Remove(2);
  Remove(3);

  ASSERT_TRUE(ledger_->AddHolder(4, 0).ok());
  EXPECT_TRUE(
      Fails(ledger_->Assign(4, 0, {}, {}).status(), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(
      Fails(ledger_->Assign(4, -1, {}, {}).status(), Code::kInvalidArgument, "FIELD_INVALID"));
  const absl::Status huge =
      ledger_->Assign(4, std::numeric_limits<int32_t>::max(), {}, {}).status();
  EXPECT_TRUE(Fails(huge, Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_FALSE(RetryDelayOf(huge).has_value()) << "it can never succeed";
  EXPECT_THAT(Assign(4, 4), ElementsAre(0, 1, 2, 3));
}

TEST_F(BlockLedgerTest, OneBadBlockChangesNothing) {
  Make(8);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  Assign(1, 3);  // 0..2
  Assign(2, 2);  // 3..4
  EXPECT_TRUE(Fails(Free(1, {0, 0}), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(Fails(Free(1, {}), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(Fails(Free(1, {0, 3}), Code::kPermissionDenied, "BLOCK_FOREIGN"));
  EXPECT_TRUE(Fails(Free(1, {0, 7}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  EXPECT_TRUE(Fails(Free(1, {0, 8}), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  EXPECT_TRUE(Fails(Free(77, {0}), Code::kNotFound, "REQUEST_UNKNOWN"));
  const auto share = [&](std::vector<int32_t> blocks, std::vector<int32_t> generations) {
    return ledger_->Assign(1, 1, blocks, generations).status();
  };
  EXPECT_TRUE(Fails(share({3, 3}, {}), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(Fails(share({3, 0}, {}), Code::kInvalidArgument, "FIELD_INVALID")) << "own block";
  EXPECT_TRUE(Fails(share({3, 7}, {}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  EXPECT_TRUE(Fails(share({3, 8}, {}), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  EXPECT_TRUE(Fails(share({3, 4}, {1}), Code::kInvalidArgument, "FIELD_INVALID"));
  const absl::Status stale = share({3, 4}, {1, 2});
  EXPECT_TRUE(Fails(stale, Code::kFailedPrecondition, "GENERATION_STALE"));
  EXPECT_EQ(ErrorMetadataOf(stale).at("block_id"), "4");
  EXPECT_EQ(ErrorMetadataOf(stale).at("expected"), "1");
  ExpectUnchanged(3, 5);
  EXPECT_EQ(ledger_->HolderCountOf(3), 1);
}

TEST_F(BlockLedgerTest, GenerationsRiseWithEachFreshAssignment) {
  Make(2);
  EXPECT_THAT(generations_, ElementsAre(BlockLedger::kNeverAssigned, BlockLedger::kNeverAssigned));
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  auto assigned = ledger_->Assign(1, 1, {}, {});
  ASSERT_TRUE(assigned.ok());
  EXPECT_THAT(assigned->generations, ElementsAre(1));
  EXPECT_THAT(assigned->recycled, IsEmpty());
  // Sharing leaves it.
  assigned = ledger_->Assign(2, 0, {0}, {1});
  ASSERT_TRUE(assigned.ok());
  EXPECT_THAT(assigned->generations, ElementsAre(1));
  Remove(1);
  EXPECT_EQ(ledger_->used_count(), 1) << "the other holder keeps it";
  Remove(2);
  ASSERT_TRUE(ledger_->AddHolder(3, 0).ok());
  assigned = ledger_->Assign(3, 2, {}, {});
  ASSERT_TRUE(assigned.ok());
  EXPECT_THAT(assigned->generations, ElementsAre(2, 1));
  EXPECT_THAT(assigned->recycled, ElementsAre(0));
  // Never 0 again, where rows that nobody backed up would count as backed.
  Remove(3);
  generations_[0] = std::numeric_limits<int32_t>::max();
  ASSERT_TRUE(ledger_->AddHolder(4, 0).ok());
  Assign(4, 1);
  EXPECT_EQ(generations_[0], 1);
}

TEST_F(BlockLedgerTest, QuarantinedBlocksAreNobodysAndNotFree) {
  Make(4);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  Assign(1, 4);
  const auto first = ledger_->Free(1, {0, 1});
  const auto second = ledger_->Free(1, {3});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->block_count, 2);
  EXPECT_EQ(ledger_->quarantined_count(), 3);
  ExpectUnchanged(0, 1);
  EXPECT_TRUE(
      Fails(ledger_->Assign(1, 1, {}, {}).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_TRUE(Fails(Free(1, {0}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  EXPECT_TRUE(Fails(ledger_->CheckAssigned({0}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  ledger_->ReleaseQuarantine(second->quarantine);
  ledger_->ReleaseQuarantine(second->quarantine);
  ExpectUnchanged(1, 1);
  EXPECT_THAT(Assign(1, 1), ElementsAre(3));
  ledger_->ReleaseQuarantine(first->quarantine);
  ExpectUnchanged(2, 2);
}

TEST_F(BlockLedgerTest, ReservedBlocksAreOnlyTheirHolders) {
  Make(8);
  ASSERT_TRUE(ledger_->AddHolder(1, 5).ok());
  EXPECT_TRUE(Fails(ledger_->AddHolder(2, 4), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_TRUE(Fails(ledger_->AddHolder(2, -1), Code::kInvalidArgument, "FIELD_INVALID"));
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  EXPECT_TRUE(
      Fails(ledger_->Assign(2, 4, {}, {}).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  Assign(2, 3);
  Assign(1, 2);
  EXPECT_EQ(ledger_->ReservedFor(1), 3);
  EXPECT_EQ(ledger_->reserved_count(), 3);
  EXPECT_EQ(ledger_->AvailableTo(2), 0);
  Assign(1, 3);
  EXPECT_EQ(ledger_->free_count(), 0);
  // What a holder frees is not reserved again; what it leaves unused is free for others.
  Remove(1);
  EXPECT_EQ(ledger_->reserved_count(), 0);
  EXPECT_EQ(ledger_->AvailableTo(2), 5);
}

TEST_F(BlockLedgerTest, UndoGivesBlocksAndReservationBackTogether) {
  Make(8);
  ASSERT_TRUE(ledger_->AddHolder(1, 4).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  const std::vector<int32_t> shared = Assign(2, 2);
  const auto assigned = ledger_->Assign(1, 5, shared, {});
  ASSERT_TRUE(assigned.ok());
  const BlockLedger::Released released = ledger_->Undo(1, *assigned);
  EXPECT_EQ(released.block_count, 5) << "the shared ones have another holder";
  EXPECT_EQ(ledger_->ReservedFor(1), 0);
  EXPECT_EQ(ledger_->AvailableTo(2), 1) << "nobody can take them meanwhile";
  ledger_->ReleaseQuarantine(released.quarantine);
  EXPECT_EQ(ledger_->ReservedFor(1), 4);
  EXPECT_EQ(ledger_->AvailableTo(2), 2);
  EXPECT_EQ(ledger_->HolderCountOf(shared[0]), 1);

  // The holder left meanwhile: its blocks went with it.
  const auto again = ledger_->Assign(1, 2, {}, {});
  ASSERT_TRUE(again.ok());
  Remove(1);
  EXPECT_EQ(ledger_->Undo(1, *again).block_count, 0);
  ExpectUnchanged(6, 2);
}

TEST_F(BlockLedgerTest, NeighboursAreBest) {
  Make(64);
  for (int64_t holder = 1; holder <= 9; ++holder) {
    ASSERT_TRUE(ledger_->AddHolder(holder, 0).ok());
  }
  EXPECT_THAT(Assign(1, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(Assign(1, 2), ElementsAre(3, 4)) << "behind its last one";
  EXPECT_THAT(Assign(2, 10), ElementsAre(5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
  Assign(3, 20);  // 15..34
  Assign(4, 20);  // 35..54
  Remove(2);      // 5..14 free, 55..63 free
  EXPECT_EQ(ledger_->largest_free_run(), 10);
  EXPECT_THAT(Assign(5, 9), ElementsAre(55, 56, 57, 58, 59, 60, 61, 62, 63))
      << "the smallest run that holds it";
  EXPECT_THAT(Assign(1, 2), ElementsAre(5, 6)) << "behind its last one, which is free again";
}

TEST_F(BlockLedgerTest, ScatteredBlocksAreTheLowest) {
  Make(16);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  Assign(1, 16);
  ASSERT_TRUE(Free(1, {14, 3, 9, 4, 11}).ok());
  EXPECT_THAT(Assign(2, 4), ElementsAre(3, 4, 9, 11));
  EXPECT_THAT(Assign(2, 1), ElementsAre(14));
}

// A holder that has blocks reserved starts where they all fit, so that it can grow in place.
TEST_F(BlockLedgerTest, ReservationsChooseRoomToGrow) {
  Make(32);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  Assign(1, 32);
  ASSERT_TRUE(Free(1, {0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17}).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 8).ok());
  EXPECT_THAT(Assign(2, 2), ElementsAre(10, 11));
  EXPECT_THAT(Assign(2, 6), ElementsAre(12, 13, 14, 15, 16, 17));
}

// A 48 GiB pool of 64-row blocks: each of many small calls must not walk it.
TEST_F(BlockLedgerTest, MillionsOfBlocksInPieces) {
  constexpr int32_t kBlocks = 1'200'000;
  Make(kBlocks, 50);
  ASSERT_TRUE(ledger_->AddHolder(1, 0).ok());
  ASSERT_TRUE(ledger_->AddHolder(2, 0).ok());
  Assign(1, kBlocks);
  std::vector<int32_t> odd;
  for (int32_t block = 1; block < kBlocks; block += 2) odd.push_back(block);
  ASSERT_TRUE(Free(1, odd).ok());
  for (int i = 0; i < 100'000; ++i) {
    const std::vector<int32_t> blocks = Assign(2, 2);
    ASSERT_EQ(blocks.size(), 2u);
    if (i % 2 == 0) {
      ASSERT_TRUE(Free(2, blocks).ok());
    }
  }
  EXPECT_EQ(ledger_->used_count(), kBlocks / 2 + 100'000);
}

}  // namespace
}  // namespace kvtier
