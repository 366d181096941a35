#include "server/service/server_arguments.h"

#include <climits>

#include "grpcpp/resource_quota.h"
#include "proto/support/wire_limits.h"
#include "server/service/incoming_calls.h"

namespace kvtier {
namespace {

// From the first words to the end of a handshake, of TLS for one.
constexpr int kHandshakeMilliseconds = 10000;
// Calls of reflection at a time, each with a message of wire::kMessageBytesMax at most.
constexpr int kReflectionThreadsMax = 16;
// Clients may ping as often as that.
constexpr int kClientPingMilliseconds = 5000;

}  // namespace

void SetServerArguments(bool has_tcp, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(wire::kMessageBytesMax);
  builder->SetMaxSendMessageSize(wire::kAnswerBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, wire::kHeaderBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(kCallsPerConnectionMax));
  // Else what a client may send before anybody asks for it grows with its speed.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Reflection is all that has threads: one that waits, and one for each call that is open.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetResourceQuota(grpc::ResourceQuota("kvtierd").SetMaxThreads(kReflectionThreadsMax));
  if (has_tcp) {
    builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  }
  // Nobody is asked whether he lives; unless told so, gRPC does after two hours. Of a Unix socket
  // the kernel says at once when the other side has died, and who lives is a worker that holds
  // memory, however long it says nothing or is stopped. Of TCP the kernel finds it
  // (tcp_listener.cc): what is said here would be for both.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  // Clients may ask, also where no call is open.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kClientPingMilliseconds);
  // The ping of a graceful end goes out also while no data flows: a session's call is silent for
  // days.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace kvtier
