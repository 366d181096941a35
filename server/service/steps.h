// The data-plane verbs, as both the unary calls and RunSteps use them.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/session/node.h"

namespace kvtier {

// Each fills `response` and then runs `done` once: at once, or on a thread of the device backend.
// Request and response must live until then. None of them waits.
using StepDone = std::function<void(absl::Status)>;
void StartSwapIn(Node* node, const v1::SwapInRequest& request, v1::SwapInResponse* response,
                 StepDone done);
void StartReplayPlan(Node* node, const v1::ReplayPlanRequest& request,
                     v1::ReplayPlanResponse* response, StepDone done);
void StartBackup(Node* node, const v1::BackupRequest& request, v1::BackupResponse* response,
                 StepDone done);
// `latest`: the end of the call that carries the step.
void StartWaitTicket(Node* node, const v1::WaitTicketRequest& request, absl::Time latest,
                     v1::WaitTicketResponse* response, StepDone done);

// The RunSteps call: one step after the other, answers in order. A client that does not read is
// not read from either. Deletes itself.
grpc::ServerBidiReactor<v1::RunStepsRequest, v1::RunStepsResponse>* NewRunStepsReactor(Node* node);

}  // namespace kvtier
