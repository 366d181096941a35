// One document that is being decoded: request after request, each with its blocks and rows.
//
// A document's steps are divided among several requests. Each of them is admitted, given blocks
// for its prompt (all tokens before its first step), prefilled by a backup, decoded step by step
// with blocks added as it grows, and released; the next one gets recycled blocks. Now and then a
// request also frees its last block and takes another, whose rows it writes again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cache.h"
#include "client/demo/device.h"
#include "client/demo/eviction_model.h"
#include "client/request.h"
#include "client/trace/trace_file.h"

namespace kvtier::demo {

// What a worker counts by itself.
struct Totals {
  int64_t decode_steps = 0;  // tokens of requests
  int64_t swap_ins = 0;      // steps of a layer group
  int64_t rows_checked = 0;  // rows of all layers
  int64_t mismatched_rows = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t newest = 0;
  int64_t kept = 0;            // misses that stayed on the device
  int64_t backed_up_rows = 0;  // once a layer group
};

class Lane {
 public:
  // `trace` must outlive the lane. Decodes its first `step_count` steps with `request_count`
  // requests named "<name>.<number>".
  Lane(std::string name, const client::Trace* trace, int32_t step_count, int32_t request_count);

  bool done() const { return step_ == step_count_; }
  int32_t step() const { return step_; }
  const client::Trace& trace() const { return *trace_; }

  // Before a step: there is a request, with a block for the step's token. `totals` counts the rows
  // of prefills.
  absl::Status Prepare(client::Cache* cache, Device* device, Totals* totals);

  // Writes row `row` of the step buffers, and the newest token's bytes into the hot buffer.
  void WriteInputs(Device* device, int32_t row);

  // Compares every row that the step of `group` handed out for `row`, in all layers.
  absl::Status Check(const Device& device, int32_t group, int32_t row, Totals* totals);

  // After the newest row was backed up. Releases the request after its last step.
  absl::Status Finish(client::Cache* cache, Totals* totals);

  // Overwrites a byte of a host row that the next step reads: a test of the demo itself.
  void CorruptHostRow(client::Cache* cache);

 private:
  absl::Status Begin(client::Cache* cache, Device* device, Totals* totals);
  absl::Status AddBlocks(int32_t count);
  // Gives up the last block and takes another.
  absl::Status ReplaceLastBlock(Device* device, Totals* totals);
  // Backs up the rows of positions [first, end), as a prefill does.
  absl::Status Prefill(Device* device, int32_t first, int32_t end, Totals* totals);
  uint64_t SeedOf(const client::CacheView& view, int32_t group, int32_t layer,
                  int32_t position) const;

  const std::string name_;
  const client::Trace* const trace_;
  const int32_t step_count_;
  const int32_t request_count_;

  int32_t step_ = 0;
  int32_t request_number_ = 0;  // of the request that comes next
  int32_t request_end_ = 0;     // step after the request's last
  uint64_t tenant_ = 0;
  std::optional<client::Request> request_;
  std::vector<int32_t> generations_;   // of the blocks of the request's table
  std::vector<EvictionModel> models_;  // by group
};

}  // namespace kvtier::demo
