// Random calls of the block ledger against a model that is too simple to be wrong.

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "server/host_pool/block_ledger.h"

namespace kvtier {
namespace {

class NaiveLedger {
 public:
  explicit NaiveLedger(int32_t block_count) : holders_(block_count) {}

  std::vector<std::set<int64_t>> holders_;  // of each block
  std::set<int32_t> quarantined_;
  std::map<int64_t, int32_t> reserved_;  // of each holder
  std::map<int64_t, std::vector<int32_t>> quarantines_;

  int32_t Free() const {
    int32_t free = 0;
    for (size_t b = 0; b < holders_.size(); ++b) {
      free += holders_[b].empty() && quarantined_.count(static_cast<int32_t>(b)) == 0;
    }
    return free;
  }
  int32_t Reserved() const {
    int32_t sum = 0;
    for (const auto& [holder, count] : reserved_) sum += count;
    return sum;
  }
  std::vector<int32_t> Drop(int64_t holder, const std::vector<int32_t>& blocks) {
    std::vector<int32_t> nobodys;
    for (const int32_t block : blocks) {
      holders_[block].erase(holder);
      if (holders_[block].empty()) nobodys.push_back(block);
    }
    quarantined_.insert(nobodys.begin(), nobodys.end());
    return nobodys;
  }
  std::vector<int32_t> BlocksOf(int64_t holder) const {
    std::vector<int32_t> blocks;
    for (size_t b = 0; b < holders_.size(); ++b) {
      if (holders_[b].count(holder) > 0) blocks.push_back(static_cast<int32_t>(b));
    }
    return blocks;
  }
};

// (seed, blocks of a neighbourhood)
class LedgerPropertyTest : public ::testing::TestWithParam<std::tuple<uint32_t, int32_t>> {
 protected:
  static constexpr int32_t kBlocks = 48;
  static constexpr int64_t kHolders = 6;

  LedgerPropertyTest()
      : random_(std::get<0>(GetParam())),
        generations_(kBlocks),
        ledger_("kv", kBlocks, std::get<1>(GetParam()), generations_.data()),
        model_(kBlocks),
        generation_model_(kBlocks, BlockLedger::kNeverAssigned) {}

  int32_t Below(int32_t bound) {
    return std::uniform_int_distribution<int32_t>(0, bound - 1)(random_);
  }
  std::vector<int32_t> SomeBlocks() {
    std::vector<int32_t> blocks(Below(4));
    // Now and then one that does not exist.
    for (int32_t& block : blocks) block = Below(kBlocks + 1) - (Below(50) == 0);
    return blocks;
  }

  void AddHolder(int64_t holder) {
    if (model_.reserved_.count(holder) > 0) return;
    const int32_t reserve = Below(3) == 0 ? Below(12) : 0;
    const bool fits = reserve <= model_.Free() - model_.Reserved();
    ASSERT_EQ(ledger_.AddHolder(holder, reserve).ok(), fits);
    if (fits) model_.reserved_[holder] = reserve;
  }

  void Assign(int64_t holder, bool undo) {
    const int32_t count = Below(8);
    std::vector<int32_t> shared;
    if (Below(3) == 0) shared = SomeBlocks();
    const auto assigned = ledger_.Assign(holder, count, shared, {});
    const bool known = model_.reserved_.count(holder) > 0;
    bool fits = known && (count > 0 || !shared.empty());
    const std::set<int32_t> distinct(shared.begin(), shared.end());
    fits = fits && distinct.size() == shared.size();
    for (const int32_t block : shared) {
      fits = fits && block >= 0 && block < kBlocks && !model_.holders_[block].empty() &&
             model_.holders_[block].count(holder) == 0;
    }
    const int32_t own = known ? model_.reserved_[holder] : 0;
    fits = fits && count <= model_.Free() - model_.Reserved() + own;
    ASSERT_EQ(assigned.ok(), fits) << assigned.status();
    if (!fits) return;
    const int32_t drawn = std::min(own, count);
    model_.reserved_[holder] -= drawn;
    ASSERT_EQ(assigned->block_ids.size(), shared.size() + count);
    for (size_t i = 0; i < assigned->block_ids.size(); ++i) {
      const int32_t block = assigned->block_ids[i];
      if (i < shared.size()) {
        ASSERT_EQ(block, shared[i]);
      } else {
        ASSERT_TRUE(model_.holders_[block].empty() && model_.quarantined_.count(block) == 0)
            << "block " << block << " was not free";
        int32_t& generation = generation_model_[block];
        generation = generation < 0 ? 1 : generation + 1;
      }
      ASSERT_EQ(assigned->generations[i], generation_model_[block]);
      model_.holders_[block].insert(holder);
    }
    if (!undo) return;
    const BlockLedger::Released released = ledger_.Undo(holder, *assigned);
    const std::vector<int32_t> nobodys = model_.Drop(holder, assigned->block_ids);
    ASSERT_EQ(released.block_count, static_cast<int32_t>(nobodys.size()));
    model_.quarantines_[released.quarantine] = nobodys;
    ledger_.ReleaseQuarantine(released.quarantine);
    EndQuarantine(released.quarantine);
    model_.reserved_[holder] += drawn;
  }

  void Free(int64_t holder) {
    std::vector<int32_t> blocks = SomeBlocks();
    const std::vector<int32_t> own = model_.BlocksOf(holder);
    if (!own.empty() && Below(4) != 0) {
      blocks = own;
      std::shuffle(blocks.begin(), blocks.end(), random_);
      blocks.resize(1 + Below(static_cast<int32_t>(blocks.size())));
      if (Below(20) == 0) blocks.push_back(blocks.front());
    }
    const std::set<int32_t> distinct(blocks.begin(), blocks.end());
    bool fits = !blocks.empty() && distinct.size() == blocks.size();
    for (const int32_t block : blocks) {
      fits = fits && block >= 0 && block < kBlocks && model_.holders_[block].count(holder) > 0;
    }
    const auto released = ledger_.Free(holder, blocks);
    ASSERT_EQ(released.ok(), fits) << released.status();
    if (fits) Quarantine(*released, model_.Drop(holder, blocks));
  }

  void Remove(int64_t holder) {
    const BlockLedger::Released released = ledger_.RemoveHolder(holder);
    Quarantine(released, model_.Drop(holder, model_.BlocksOf(holder)));
    model_.reserved_.erase(holder);
  }

  void Quarantine(const BlockLedger::Released& released, const std::vector<int32_t>& nobodys) {
    ASSERT_EQ(released.block_count, static_cast<int32_t>(nobodys.size()));
    ASSERT_EQ(released.quarantine == BlockLedger::kNoQuarantine, nobodys.empty());
    if (!nobodys.empty()) model_.quarantines_[released.quarantine] = nobodys;
  }
  void EndQuarantine(int64_t quarantine) {
    for (const int32_t block : model_.quarantines_[quarantine]) model_.quarantined_.erase(block);
    model_.quarantines_.erase(quarantine);
  }
  void ReleaseOne() {
    if (model_.quarantines_.empty()) return;
    const auto one = std::next(model_.quarantines_.begin(),
                               Below(static_cast<int32_t>(model_.quarantines_.size())));
    const int64_t quarantine = one->first;
    ledger_.ReleaseQuarantine(quarantine);
    EndQuarantine(quarantine);
  }

  void Check(bool deep) {
    // I6: every block is exactly one of free, used, quarantined.
    ASSERT_EQ(ledger_.free_count(), model_.Free());
    ASSERT_EQ(ledger_.quarantined_count(), static_cast<int32_t>(model_.quarantined_.size()));
    ASSERT_EQ(ledger_.free_count() + ledger_.used_count() + ledger_.quarantined_count(), kBlocks);
    ASSERT_EQ(ledger_.reserved_count(), model_.Reserved());
    ASSERT_LE(ledger_.reserved_count(), ledger_.free_count());
    if (!deep) return;
    int32_t run = 0, longest = 0;
    for (int32_t b = 0; b < kBlocks; ++b) {
      ASSERT_EQ(ledger_.HolderCountOf(b), static_cast<int32_t>(model_.holders_[b].size()));
      const bool free = model_.holders_[b].empty() && model_.quarantined_.count(b) == 0;
      ASSERT_EQ(ledger_.IsFree(b), free);
      run = free ? run + 1 : 0;
      longest = std::max(longest, run);
    }
    ASSERT_EQ(ledger_.largest_free_run(), longest);
    ASSERT_EQ(generations_, generation_model_);
  }

  std::mt19937 random_;
  std::vector<int32_t> generations_;
  BlockLedger ledger_;
  NaiveLedger model_;
  std::vector<int32_t> generation_model_;
};

TEST_P(LedgerPropertyTest, AgreesWithANaiveModel) {
  for (int step = 0; step < 30000; ++step) {
    const int64_t holder = 1 + Below(kHolders);
    switch (Below(10)) {
      case 0:
        AddHolder(holder);
        break;
      case 1:
        if (Below(3) == 0) Remove(holder);
        break;
      case 2:
      case 3:
        Free(holder);
        break;
      case 4:
        Assign(holder, /*undo=*/true);
        break;
      case 5:
      case 6:
        Assign(holder, /*undo=*/false);
        break;
      default:
        ReleaseOne();
    }
    Check(/*deep=*/step % 16 == 0);
    if (HasFatalFailure()) FAIL() << "seed " << std::get<0>(GetParam()) << ", step " << step;
  }
}

// 5 does not divide the blocks; 64 are more than there are.
INSTANTIATE_TEST_SUITE_P(Seeds, LedgerPropertyTest,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u, 4u, 5u),
                                            ::testing::Values(1, 5, 16, 64)));

}  // namespace
}  // namespace kvtier
