// A worker as an engine has them: one session, requests at a given pace, each with its prompt,
// some decode steps on one of the two planes, rows written anew, and every row compared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "client/steps.h"
#include "tests/load/call_times.h"

namespace kvtier::load {

struct WorkerOptions {
  std::string socket_path;
  int32_t number = 0;       // unique in the run
  int32_t cache_count = 1;  // worker n attaches to cache n % cache_count
  absl::Duration period;    // between the starts of two requests
  absl::Time begin, end;    // of the first request; none starts later
  // Opens its session anew after so many requests.
  int32_t requests_per_session = 100;
};

struct WorkerResult {
  int64_t requests = 0;      // admitted, decoded, released
  int64_t rows_checked = 0;  // swapped-in rows, each layer
  int64_t wrong_rows = 0;
  int64_t sessions = 0;
  int64_t errors = 0;
  std::string first_error;
  double late_ms_max = 0;  // a request's start after its time

  void Add(const WorkerResult& other);
};

// The layout of every cache.
inline constexpr int32_t kBlockSize = 16, kBlockCount = 64, kLayers = 2, kRowBytes = 256,
                         kTopK = 32, kRequestsMax = 2;
// Blocks of the longest prompt, and of what is decoded.
inline constexpr int32_t kPromptBlocksMax = 4, kOutputBlocks = 1, kDecodeSteps = 4;
// Workers of one cache: each may hold the largest request.
inline constexpr int32_t kWorkersPerCacheMax = kBlockCount / (kPromptBlocksMax + kOutputBlocks);

class Worker {
 public:
  // `times` must outlive it.
  Worker(WorkerOptions options, CallTimes* times);

  // Requests until the end. Errors are counted, and the session is opened again after one.
  WorkerResult Run();
  // A session, `count` requests one after the other, and its end.
  WorkerResult RunRequests(int32_t count);

 private:
  enum class Plane { kInProcess, kUnary, kStreamed };

  absl::Status Open();
  void Close();
  absl::Status RunRequest();
  absl::Status Prefill(client::Request* request, int32_t length);
  absl::Status Decode(client::Request* request, int32_t length, Plane plane);
  absl::Status WriteAnew(client::Request* request, int32_t length);
  // One step whose newest token is at `position`; compares all rows that it selects.
  absl::Status Step(const client::Request& request, int32_t position, Plane plane);
  absl::Status SwapIn(Plane plane);
  absl::Status Backup(Plane plane);
  void Note(const absl::Status& status);
  uint64_t Random() { return Mixed(++random_); }
  static uint64_t Mixed(uint64_t value);
  int32_t VersionOf(int32_t position) const { return position < rewritten_ ? 1 : 0; }

  const WorkerOptions options_;
  CallTimes* const times_;
  WorkerResult result_;
  uint64_t random_;
  uint64_t request_number_;
  int32_t rewritten_ = 0;  // positions of this request that were written anew
  int32_t session_requests_ = 0;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Cache> cache_;
  std::unique_ptr<client::Steps> steps_;
};

}  // namespace kvtier::load
