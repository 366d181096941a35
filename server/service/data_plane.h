// The verbs that only enqueue: what unary calls and RunSteps have in common.
//
// None of these waits. `done` runs exactly once: at once with an error or for work that need not
// be waited for, else when the work is done, on a thread of the device backend or of gRPC. It
// must not block.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "server/core/clock.h"
#include "server/session/node.h"

namespace kvtier {

class DataPlane {
 public:
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;

  // `node` and `clock` must outlive every `done`.
  DataPlane(Node* node, const Clock* clock) : node_(node), clock_(clock) {}

  // What the answer of `request` takes in memory, at most. 0: next to nothing, as its results are
  // left in the step buffers.
  int64_t AnswerBytesMax(const v1::SwapInRequest& request) const;
  // What the rows of `request` take in memory, if they are in the message.
  static int64_t RowBytes(const v1::BackupRequest& request);
  void SwapIn(const v1::SwapInRequest& request, Done<v1::SwapInResponse> done) const;
  void ReplayPlan(const v1::ReplayPlanRequest& request, Done<v1::ReplayPlanResponse> done) const;
  void Backup(const v1::BackupRequest& request, Done<v1::BackupResponse> done) const;
  // Waits no longer than the request says, than kCallDurationMax, and than `deadline`.
  void WaitTicket(const v1::WaitTicketRequest& request, absl::Time deadline,
                  Done<v1::WaitTicketResponse> done) const;

 private:
  Node* const node_;
  const Clock* const clock_;
};

}  // namespace kvtier
