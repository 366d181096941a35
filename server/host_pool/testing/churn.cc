#include "server/host_pool/testing/churn.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

namespace kvtier::testing {
namespace {

constexpr int64_t kPieceBytes = int64_t{2} << 20;

// What cannot fail here.
void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

void End(BlockLedger* ledger, int64_t holder) {
  ledger->ReleaseQuarantine(ledger->RemoveHolder(holder).quarantine);
}

class Tenants {
 public:
  Tenants(BlockLedger* ledger, const ChurnOptions& options)
      : ledger_(*ledger), options_(options), random_(options.seed) {}

  void Run() {
    const int64_t assigned_max = int64_t{options_.fills} * ledger_.block_count();
    while (assigned_ < assigned_max) {
      while (static_cast<int32_t>(growing_.size()) < options_.growing) Admit();
      for (size_t i = 0; i < growing_.size();) {
        if (growing_[i].missing == 0) {
          grown_.push_back(growing_[i].holder);
          growing_[i] = growing_.back();
          growing_.pop_back();
        } else {
          --growing_[i].missing;
          Take(growing_[i++].holder, 1);
        }
      }
    }
    for (const Growing& growing : growing_) grown_.push_back(growing.holder);
    MakeRoom(static_cast<int32_t>(options_.free_share * ledger_.block_count()));
  }

 private:
  struct Growing {
    int64_t holder;
    int32_t missing;
  };

  double Draw(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

  void Admit() {
    const int64_t holder = last_holder_++;
    Require(ledger_.AddHolder(holder, 0));
    const auto blocks = static_cast<int32_t>(
        std::exp(Draw(std::log(options_.blocks_min), std::log(options_.blocks_max))));
    const int32_t at_once = std::max(static_cast<int32_t>(blocks * Draw(0, 1)), 1);
    growing_.push_back({holder, std::max(blocks - at_once, 0)});
    Take(holder, at_once);
  }

  void Take(int64_t holder, int32_t count) {
    MakeRoom(count);
    // A small pool may be full of requests that grow: they stay shorter.
    if (ledger_.AvailableTo(holder) < count) return;
    Require(ledger_.Assign(holder, count, {}, {}).status());
    assigned_ += count;
  }

  void MakeRoom(int32_t free_count) {
    while (ledger_.free_count() < free_count && !grown_.empty()) {
      // Some at a time, so that there is a choice of places again.
      for (size_t i = grown_.size() / 50 + 1; i > 0; --i) {
        std::swap(grown_[random_() % grown_.size()], grown_.back());
        End(&ledger_, grown_.back());
        grown_.pop_back();
      }
    }
  }

  BlockLedger& ledger_;
  const ChurnOptions options_;
  std::mt19937_64 random_;
  std::vector<Growing> growing_;
  std::vector<int64_t> grown_;  // holders
  int64_t last_holder_ = 0;
  int64_t assigned_ = 0;
};

}  // namespace

void Churn(BlockLedger* ledger, const ChurnOptions& options) { Tenants(ledger, options).Run(); }

std::vector<Table> Place(BlockLedger* ledger, int64_t first_holder, int32_t requests,
                         int32_t blocks, int32_t at_once) {
  std::vector<Table> tables(requests);
  const auto take = [&](int32_t request, int32_t count) {
    const auto assigned = ledger->Assign(first_holder + request, count, {}, {});
    Require(assigned.status());
    tables[request].insert(tables[request].end(), assigned->block_ids.begin(),
                           assigned->block_ids.end());
  };
  for (int32_t request = 0; request < requests; ++request) {
    Require(ledger->AddHolder(first_holder + request, 0));
    if (at_once > 0) take(request, at_once);
  }
  for (int32_t block = at_once; block < blocks; ++block) {
    for (int32_t request = 0; request < requests; ++request) take(request, 1);
  }
  return tables;
}

void Remove(BlockLedger* ledger, int64_t first_holder, int32_t requests) {
  for (int32_t request = 0; request < requests; ++request) End(ledger, first_holder + request);
}

Spread SpreadOf(const std::vector<Table>& tables, int64_t block_bytes) {
  int64_t pieces = 0, blocks = 0, in_large = 0, huge_pages = 0;
  for (Table table : tables) {
    std::sort(table.begin(), table.end());
    std::set<int64_t> touched;
    for (const int32_t block : table) {
      const int64_t begin = block * block_bytes;
      for (int64_t page = begin / kPieceBytes; page * kPieceBytes < begin + block_bytes; ++page) {
        touched.insert(page);
      }
    }
    huge_pages += static_cast<int64_t>(touched.size());
    blocks += static_cast<int64_t>(table.size());
    for (size_t begin = 0, end = 0; begin < table.size(); begin = end) {
      for (end = begin + 1; end < table.size() && table[end] == table[end - 1] + 1; ++end) {
      }
      const auto length = static_cast<int64_t>(end - begin);
      ++pieces;
      if (length * block_bytes >= kPieceBytes) in_large += length;
    }
  }
  const auto requests = static_cast<double>(tables.size());
  return {.pieces = static_cast<double>(pieces) / requests,
          .large_share = static_cast<double>(in_large) / static_cast<double>(blocks),
          .huge_pages = static_cast<double>(huge_pages) / requests};
}

}  // namespace kvtier::testing
