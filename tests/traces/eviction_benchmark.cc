// Rows that trace files make cross PCIe under both policies, as a table for docs/BENCHMARKS.md. No
// clock: the same numbers everywhere.
//
//   bazel run -c opt //tests/traces:eviction_benchmark -- HOT_SIZE FILE.kvtrace...
//
// tools/demo_pack_traces.py makes such files of recordings with any number of columns (top_k).
#include <cstdio>
#include <cstdlib>

#include "tests/traces/eviction.h"

namespace kvtier::traces {
namespace {

double PercentFewer(int64_t lru, int64_t aged) {
  return lru == 0 ? 0.0 : 100.0 * (1.0 - static_cast<double>(aged) / static_cast<double>(lru));
}

void PrintRow(const char* name, const Misses& lru, const Misses& aged) {
  std::printf("| %s | %lld | %lld | %.1f | %.1f |\n", name, static_cast<long long>(lru.all),
              static_cast<long long>(aged.all), PercentFewer(lru.all, aged.all),
              PercentFewer(lru.after_first_quarter, aged.after_first_quarter));
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: eviction_benchmark HOT_SIZE FILE.kvtrace...\n");
    return 2;
  }
  const int32_t hot_size = std::atoi(argv[1]);
  std::printf("| trace | LRU | aged | %% fewer | after the first quarter |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  Misses lru_sum, aged_sum;
  for (int i = 2; i < argc; ++i) {
    const absl::StatusOr<client::Trace> trace = client::ReadTrace(argv[i]);
    if (!trace.ok() || hot_size < trace->top_k || hot_size > kHotSizeMax) {
      std::fprintf(
          stderr, "%s: %s\n", argv[i],
          trace.ok() ? "HOT_SIZE must be its top_k..32768" : trace.status().ToString().c_str());
      return 1;
    }
    const Misses lru = MissesOf(*trace, hot_size, EvictionPolicy::kLru);
    const Misses aged = MissesOf(*trace, hot_size, EvictionPolicy::kAged);
    PrintRow(argv[i], lru, aged);
    for (const auto& [part, sum] : {std::pair(lru, &lru_sum), std::pair(aged, &aged_sum)}) {
      sum->all += part.all;
      sum->after_first_quarter += part.after_first_quarter;
    }
  }
  PrintRow("all", lru_sum, aged_sum);
  return 0;
}

}  // namespace
}  // namespace kvtier::traces

int main(int argc, char** argv) { return kvtier::traces::Main(argc, argv); }
