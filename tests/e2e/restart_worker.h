// A worker of restart_benchmark.cc: fills a cache before its daemon is killed, and takes it up from
// the next one. Whatever fails ends the process.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "tests/e2e/daemon.h"

namespace kvtier::e2e {

using BenchClock = std::chrono::steady_clock;

double MillisecondsSince(BenchClock::time_point begin);

void Must(const absl::Status& status, const char* what);
template <typename T>
T Must(absl::StatusOr<T> result, const char* what) {
  Must(result.status(), what);
  return *std::move(result);
}

// One layer; regions for two requests.
v1::CacheLayout LayoutOf(int32_t row_bytes, int32_t block_size, int32_t block_count);

// A worker's session and its cache; both end together.
struct Worker {
  client::Session session;
  client::Cache cache;
};
Worker Attach(const Daemon& daemon, const std::string& name, const v1::CacheLayout& layout);

// Holds every block, writes its slot number into every row, and marks all as backed up.
client::Request FillAll(Worker& worker);

// What is kept of all that FillAll left, taken up by `request`. `wrong`: rows that differ or are
// not there.
struct Kept {
  double list_ms = 0, take_up_ms = 0;
  int64_t wrong = 0;
  std::optional<client::Request> request;
};
Kept TakeUpAll(Worker& worker);

}  // namespace kvtier::e2e
