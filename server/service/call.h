// What every unary call of ours has in common: its deadline, and the thread it runs on.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/service/control_executor.h"
#include "server/service/status.h"
#include "server/session/node.h"

namespace kvtier {

// When the call must be answered: the client's deadline, at most kCallDurationMax from now.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// Finishes a call whose answer is known.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status);

// Runs `verb(deadline)` on the executor and answers with its status. A call that was cancelled or
// whose deadline passed while it was queued is not executed.
grpc::ServerUnaryReactor* RunControl(ControlExecutor* executor,
                                     grpc::CallbackServerContext* context,
                                     std::function<absl::Status(absl::Time deadline)> verb);

// Runs `done` once: with the newest completed ticket when `ticket` is done, with its error, or
// with DEADLINE at `deadline`.
void AwaitTicket(Node* node, const std::string& session_id, const std::string& cache,
                 int64_t ticket, absl::Time deadline,
                 std::function<void(absl::StatusOr<int64_t>)> done);

}  // namespace kvtier
