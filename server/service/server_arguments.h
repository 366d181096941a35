// What gRPC is told of connections, whichever door they come by.
#pragma once

#include "grpcpp/server_builder.h"

namespace kvtier {

// `has_tcp`: connections of others than this machine's users are among them.
void SetServerArguments(bool has_tcp, grpc::ServerBuilder* builder);

}  // namespace kvtier
