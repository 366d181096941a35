// One worker of the demo: an engine without a model. It decodes several documents at once, their
// recorded top-k in place of an indexer's, and checks every row that it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cache.h"
#include "client/demo/device.h"
#include "client/demo/lane.h"
#include "client/session.h"
#include "client/trace/trace_file.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::demo {

struct WorkerOptions {
  std::string name;
  Plane plane = Plane::kInProcess;
  int32_t steps = 256;                // of each document, at most what its trace has
  int32_t requests_per_document = 3;  // that share those steps
  bool corrupt_row = false;           // one host row, so that the check has something to find
};

// The layout that all workers of the demo agree on: `group_count` groups of a leader and a
// follower with rows of 656 bytes (fp8 DSA: 512 values, 16 scale bytes, 128 RoPE bytes).
v1::CacheLayout DemoLayout(int32_t group_count, int32_t block_count, int32_t max_requests,
                           int32_t top_k, v1::EvictionPolicy eviction = v1::EVICTION_POLICY_LRU);

// Decodes one request of every trace at a time, until all steps are done. `progress` is called
// after each step of the batch. Errors: of the calls; INTERNAL if the kernels' misses are not
// those of the model of the cache's policy. Rows that differ are counted, and are no error here.
absl::Status RunWorker(client::Cache* cache, const std::vector<client::Trace>& traces,
                       const WorkerOptions& options, Totals* totals,
                       const std::function<void(const Totals&)>& progress);

}  // namespace kvtier::demo
