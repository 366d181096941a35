// Where blocks lie after a day, and what their assignment costs.
//
// Pools of one layer of 656-byte rows in blocks of 64, filled three times over by requests of 8 to
// 4,096 blocks that come, grow and go at random (testing/churn.h). Then a part is free, and 64
// requests of 512 blocks (32,768 rows, 21 MB) are placed: all at once, or a block each in turn, as
// they decode. Columns: pieces of neighbouring blocks a request; the share of their rows in pieces
// of 2 MiB or more; 2 MiB pages touched a request, of which 11 are the least. Assign and free: of
// 512 blocks in one call, percentiles of 256 calls.
//
// Neighbourhoods of 1 block: placed by runs of free blocks alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "server/host_pool/testing/churn.h"

namespace kvtier::testing {
namespace {

constexpr int64_t kBlockBytes = 64 * 656;
constexpr int32_t kRequests = 64, kBlocks = 512;
constexpr int32_t kTimedCalls = 256;
constexpr int64_t kFirstHolder = int64_t{1} << 40;

double MicrosecondsOf(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

struct Percentiles {
  double p50 = 0, p99 = 0;
};
Percentiles Of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() * 99 / 100]};
}

struct Costs {
  Percentiles assign, free;
};

// Between the calls a random other request gives its place back, so that each finds others free.
Costs TimeCalls(BlockLedger* ledger) {
  std::vector<double> assign, free;
  for (int64_t i = 0; i < kTimedCalls; ++i) {
    const int64_t holder = kFirstHolder + i;
    if (!ledger->AddHolder(holder, 0).ok()) return {};
    const auto begin = std::chrono::steady_clock::now();
    const auto assigned = ledger->Assign(holder, kBlocks, {}, {});
    const auto middle = std::chrono::steady_clock::now();
    if (!assigned.ok()) return {};
    const auto released = ledger->Free(holder, assigned->block_ids);
    ledger->ReleaseQuarantine(released->quarantine);
    const auto end = std::chrono::steady_clock::now();
    assign.push_back(MicrosecondsOf(middle - begin));
    free.push_back(MicrosecondsOf(end - middle));
    Remove(ledger, holder, 1);
    // The next call finds this one's first half taken.
    if (i % 2 == 0) Place(ledger, kFirstHolder + kTimedCalls + i, 1, kBlocks / 2, kBlocks / 2);
    if (i % 2 == 1) Remove(ledger, kFirstHolder + kTimedCalls + i - 1, 1);
  }
  return {Of(assign), Of(free)};
}

void Run(int32_t pool_gib, double free_share, int32_t neighbourhood_blocks) {
  const auto block_count = static_cast<int32_t>((int64_t{pool_gib} << 30) / kBlockBytes);
  std::vector<int32_t> generations(block_count);
  BlockLedger ledger("kv", block_count, neighbourhood_blocks, generations.data());
  Churn(&ledger, {.free_share = free_share});
  const Costs costs = TimeCalls(&ledger);
  for (const int32_t at_once : {kBlocks, 0}) {
    const Spread spread =
        SpreadOf(Place(&ledger, kFirstHolder, kRequests, kBlocks, at_once), kBlockBytes);
    Remove(&ledger, kFirstHolder, kRequests);
    const char* const how = at_once > 0 ? "at once" : "in turn";
    std::printf("| %d | %.0f | %d | %s | %.1f | %.0f | %.1f | %.0f | %.0f | %.0f | %.0f |\n",
                pool_gib, 100 * free_share, neighbourhood_blocks, how, spread.pieces,
                100 * spread.large_share, spread.huge_pages, costs.assign.p50, costs.assign.p99,
                costs.free.p50, costs.free.p99);
    std::printf(
        "{\"benchmark\":\"block_placement\",\"pool_gib\":%d,\"free_share\":%.2f,"
        "\"neighbourhood_blocks\":%d,\"placed\":\"%s\",\"pieces\":%.2f,\"large_share\":%.4f,"
        "\"huge_pages\":%.2f,\"assign_p50_us\":%.1f,\"assign_p99_us\":%.1f,\"free_p50_us\":%.1f,"
        "\"free_p99_us\":%.1f}\n",
        pool_gib, free_share, neighbourhood_blocks, how, spread.pieces, spread.large_share,
        spread.huge_pages, costs.assign.p50, costs.assign.p99, costs.free.p50, costs.free.p99);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace kvtier::testing

int main() {
  std::printf(
      "| pool GiB | free %% | blocks of a neighbourhood | placed | pieces | rows in pieces >= 2 "
      "MiB "
      "%% | 2 MiB pages | assign p50 us | p99 | free p50 us | p99 |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int32_t pool_gib : {8, 16, 32, 48, 64}) {
    // The smallest must have room for what is placed.
    for (const double free_share : {0.25, pool_gib < 32 ? 0.20 : 0.08}) {
      for (const int32_t neighbourhood_blocks : {1, 50, 100}) {
        kvtier::testing::Run(pool_gib, free_share, neighbourhood_blocks);
      }
    }
  }
  return 0;
}
