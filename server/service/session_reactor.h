// The OpenSession call: the lease of one worker.
#pragma once

#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "server/service/kv_tier_service.h"
#include "server/session/node.h"

namespace kvtier {

// Opens a session and writes its events until the session or the call ends; the end of the call
// closes the session. Deletes itself.
grpc::ServerWriteReactor<v1::SessionEvent>* NewSessionReactor(
    const KvTierServiceOptions& options, Node* node, const v1::OpenSessionRequest& request);

}  // namespace kvtier
