// Trace files: whatever is in one, it is taken or refused, and one that is taken is causal and
// comes out the same when it is written and read again.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/trace/trace_file.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

absl::Status CheckCausal(const client::Trace& trace) {
  const int64_t count = int64_t{trace.layer_count} * trace.step_count * trace.top_k;
  if (static_cast<int64_t>(trace.positions.size()) != count) {
    return absl::InternalError("as many positions as it says");
  }
  for (int32_t layer = 0; layer < trace.layer_count; ++layer) {
    for (int32_t step = 0; step < trace.step_count; ++step) {
      for (const int32_t position : trace.positions_of(layer, step)) {
        if (position < 0 || position > trace.own_position(step)) {
          return absl::InternalError(absl::StrCat("step ", step, " names position ", position));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Play(absl::string_view bytes, Played* played) {
  ++played->operations;
  const absl::StatusOr<client::Trace> trace = client::ParseTrace(bytes);
  if (!trace.ok()) {
    ++played->errors;
    return absl::IsInvalidArgument(trace.status()) ? absl::OkStatus()
                                                   : absl::InternalError(trace.status().ToString());
  }
  const absl::Status causal = CheckCausal(*trace);
  if (!causal.ok()) return causal;
  const absl::StatusOr<std::string> written = client::SerializeTrace(*trace);
  if (!written.ok()) return absl::InternalError(written.status().ToString());
  const absl::StatusOr<client::Trace> again = client::ParseTrace(*written);
  if (!again.ok()) return absl::InternalError(again.status().ToString());
  const bool same = again->layer_count == trace->layer_count &&
                    again->step_count == trace->step_count && again->top_k == trace->top_k &&
                    again->first_position == trace->first_position &&
                    again->positions == trace->positions;
  return same ? absl::OkStatus() : absl::InternalError("it reads otherwise when written again");
}

}  // namespace

Target GetTarget() { return {.play = Play}; }

}  // namespace kvtier::fuzz
