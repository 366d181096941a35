// Recorded top-k positions: which past positions each decode step of a document asked for.
//
// A trace file is 32 bytes of header and then bit-packed positions (tests/traces/README.md has
// the format, tools/demo_pack_traces.py writes it):
//
//   auto trace = kvtier::client::ReadTrace("tests/traces/novel.kvtrace");
//   if (!trace.ok()) return trace.status();
//   for (int32_t step = 0; step < trace->step_count; ++step) {
//     Replay(trace->own_position(step), trace->positions_of(/*layer=*/0, step));
//   }
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier::client {

// One document's trace. Every position is in [0, own_position(step)].
struct Trace {
  int32_t layer_count = 0;
  int32_t step_count = 0;
  int32_t top_k = 0;               // positions a layer and step
  int32_t first_position = 0;      // own position of step 0
  std::vector<int32_t> positions;  // [layer_count, step_count, top_k], best first

  // The position of the token that step `step` decodes.
  int32_t own_position(int32_t step) const { return first_position + step; }

  // [top_k] positions, best first. layer in [0, layer_count), step in [0, step_count).
  std::span<const int32_t> positions_of(int32_t layer, int32_t step) const {
    const int64_t row = int64_t{layer} * step_count + step;
    return std::span<const int32_t>(positions).subspan(row * top_k, top_k);
  }
};

// Largest file that ReadTrace reads.
inline constexpr int64_t kTraceBytesMax = int64_t{1} << 30;

// The trace in the file `path`. Errors: NOT_FOUND (cannot be opened), INVALID_ARGUMENT (as
// ParseTrace, with the path), RESOURCE_EXHAUSTED (larger than kTraceBytesMax).
absl::StatusOr<Trace> ReadTrace(const std::string& path);

// The trace in `bytes`. Errors: INVALID_ARGUMENT for anything but a whole file of version 1
// whose positions are causal, with what is wrong and where.
absl::StatusOr<Trace> ParseTrace(absl::string_view bytes);

// The file of `trace`, with the fewest bits that hold its largest position. Errors:
// INVALID_ARGUMENT for what ParseTrace would refuse.
absl::StatusOr<std::string> SerializeTrace(const Trace& trace);

}  // namespace kvtier::client
