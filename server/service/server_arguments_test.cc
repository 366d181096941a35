#include "server/service/server_arguments.h"

#include <climits>
#include <cstring>
#include <optional>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

// What gRPC would get.
class Builder : public grpc::ServerBuilder {
 public:
  // The last one counts, as with gRPC.
  std::optional<int> Number(const char* name) {
    grpc::ChannelArguments arguments = BuildChannelArgs();
    const grpc_channel_args all = arguments.c_channel_args();
    std::optional<int> found;
    for (size_t i = 0; i < all.num_args; ++i) {
      const grpc_arg& each = all.args[i];
      if (each.type == GRPC_ARG_INTEGER && strcmp(each.key, name) == 0) {
        found = each.value.integer;
      }
    }
    return found;
  }
};

// Left alone, gRPC pings after two hours of silence and gives 20 s for an answer; what is set for
// TCP would be for workers as well, which may be stopped for as long as somebody likes.
TEST(ServerArguments, NobodyIsPingedWhetherOrNotThereIsTcp) {
  for (const bool has_tcp : {false, true}) {
    SCOPED_TRACE(has_tcp);
    Builder builder;
    SetServerArguments(has_tcp, &builder);
    EXPECT_EQ(builder.Number(GRPC_ARG_KEEPALIVE_TIME_MS), INT_MAX);
    EXPECT_EQ(builder.Number(GRPC_ARG_KEEPALIVE_TIMEOUT_MS), std::nullopt);
    EXPECT_EQ(builder.Number(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS), 1);
  }
}

TEST(ServerArguments, HandshakesOfTcpAreShort) {
  Builder unix_alone, tcp_too;
  SetServerArguments(false, &unix_alone);
  SetServerArguments(true, &tcp_too);
  EXPECT_EQ(unix_alone.Number(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS), std::nullopt);
  EXPECT_EQ(tcp_too.Number(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS), 10000);
}

}  // namespace
}  // namespace kvtier
