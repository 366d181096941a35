// OpenSession: the call that is the lease.
//
// The first event is `opened`; draining and revoked follow when they happen. The end of the call,
// however it comes about (the worker closes it, dies, or its connection breaks), closes the
// session at once. An ended session ends the call.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/service/call_log.h"
#include "server/service/log.h"
#include "server/service/open_calls.h"
#include "server/service/unread_answers.h"
#include "server/session/node.h"
#include "server/session/types.h"

namespace kvtier {

// What the calls of a service have in common. Everything must outlive the calls.
struct SessionCallContext {
  Node* node = nullptr;
  OpenCalls* open_calls = nullptr;
  CallLog* call_log = nullptr;
  UnreadAnswers* unread_answers = nullptr;
  const Log* log = nullptr;
  std::string version;
  std::string fd_socket_path;
  std::vector<DeviceInfo> devices;
};

// The reactor of one call; deletes itself. `peer`: whose worker, or why it is none.
grpc::ServerWriteReactor<v1::SessionEvent>* NewSessionCall(const SessionCallContext* context,
                                                           const CallRecord& record,
                                                           const absl::StatusOr<Peer>& peer,
                                                           const v1::OpenSessionRequest& request);

}  // namespace kvtier
