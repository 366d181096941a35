// RunSteps: steps in, answers out in the same order.
//
// A step is handed to the node as it is read, so that the device stream is never idle while an
// answer is on its way. At most kStepsOpenMax steps are between reading and answering: a client
// that does not read its answers is not read from either, and its stream's flow control holds it
// back. Nothing is buffered beyond that. Of steps that are large, or whose answers are, fewer are
// read: at most kStepBytesMax and one step more.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/core/limits.h"
#include "server/service/call_log.h"
#include "server/service/data_plane.h"
#include "server/service/open_calls.h"
#include "server/service/unread_answers.h"

namespace kvtier {

// Deep enough to hide a round trip behind steps of tens of microseconds.
inline constexpr int kStepsOpenMax = 64;

// Answers between reading and being taken, in memory: as much as the largest has. Rows to be backed
// up count as well, as the message has them, which takes more than what the node counts of them:
// who sends no others than these finds no limit there.
inline constexpr int64_t kStepBytesMax = int64_t{32} << 20;
static_assert(kStepBytesMax <= kInlineBytesInFlightMax);

using RunStepsReactor = grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>;

// May the caller use that session?
using CallerCheck = std::function<absl::Status(const std::string& session_id)>;

// The reactor of one call; deletes itself. `data_plane`, `open_calls` and `unread_answers` must
// outlive it. `connection` as UnreadAnswers wants it.
RunStepsReactor* NewRunStepsCall(const DataPlane* data_plane, OpenCalls* open_calls,
                                 UnreadAnswers* unread_answers, const UnreadAnswers::Reader& reader,
                                 const CallRecord& record, CallerCheck check);
// One that ends with `status` at once.
RunStepsReactor* NewRefusedStepsCall(const CallRecord& record, const absl::Status& status);

}  // namespace kvtier
