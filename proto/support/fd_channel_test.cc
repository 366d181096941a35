#include "proto/support/fd_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/support/wire_limits.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(10); }

struct Pair {
  Descriptor client, daemon;
};

Pair Connected() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

Descriptor Memory(int64_t bytes) {
  Descriptor fd(memfd_create("fd_channel_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  return fd;
}

int64_t SizeOf(const Descriptor& fd) {
  struct stat file = {};
  EXPECT_EQ(fstat(fd.get(), &file), 0);
  return file.st_size;
}

// A packet made by hand, with `fds` as SCM_RIGHTS.
void SendRaw(int socket, std::string bytes, const std::vector<int>& fds) {
  iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  ASSERT_GE(sendmsg(socket, &header, MSG_NOSIGNAL), 0) << strerror(errno);
}

// The lowest free number: how many descriptors are open shows in it.
int NextDescriptor() {
  const Descriptor probe(fcntl(0, F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

const std::string kOkBytes(4, '\0');

TEST(FdChannel, PassesADescriptorForAToken) {
  Pair pair = Connected();
  const Descriptor memory = Memory(4096 * 3);
  // The answer may be there before it is waited for.
  ASSERT_TRUE(SendAnswer(pair.daemon.get(), absl::OkStatus(), memory.get()).ok());
  absl::StatusOr<Descriptor> got = RedeemFd(pair.client, "0123456789abcdef", Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(SizeOf(*got), 4096 * 3);
  EXPECT_NE(fcntl(got->get(), F_GETFD) & FD_CLOEXEC, 0);
  absl::StatusOr<std::string> token = ReceiveToken(pair.daemon.get());
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*token, "0123456789abcdef");
}

TEST(FdChannel, PassesARefusal) {
  Pair pair = Connected();
  const absl::Status refusal = absl::NotFoundError("the token is not known");
  ASSERT_TRUE(SendAnswer(pair.daemon.get(), refusal, -1).ok());
  EXPECT_EQ(RedeemFd(pair.client, "t", Soon()).status(), refusal);
}

TEST(FdChannel, CutsLongTexts) {
  Pair pair = Connected();
  ASSERT_TRUE(SendAnswer(pair.daemon.get(), absl::InternalError(std::string(5000, 'x')), -1).ok());
  const absl::Status status = RedeemFd(pair.client, "t", Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), std::string(wire::kFdMessageBytesMax, 'x'));
}

TEST(FdChannel, WaitsNoLongerThanTheDeadline) {
  Pair pair = Connected();
  EXPECT_EQ(RedeemFd(pair.client, "t", absl::Now() + absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RedeemFd(pair.client, "t", absl::InfinitePast()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(FdChannel, SaysThatTheOtherSideIsGone) {
  Pair pair = Connected();
  pair.daemon = Descriptor();
  EXPECT_EQ(RedeemFd(pair.client, "t", Soon()).status().code(), absl::StatusCode::kUnavailable);
  Pair other = Connected();
  other.client = Descriptor();
  EXPECT_EQ(ReceiveToken(other.daemon.get()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(SendAnswer(other.daemon.get(), absl::InternalError("x"), -1).code(),
            absl::StatusCode::kUnavailable);
}

TEST(FdChannel, RefusesAnswersThatAreNone) {
  const Descriptor memory = Memory(1);
  const int before = NextDescriptor();
  const std::pair<std::string, std::vector<int>> answers[] = {
      {"ab", {}},                                      // too short
      {"ab", {memory.get()}},                          // too short, with a descriptor
      {kOkBytes, {}},                                  // OK without a descriptor
      {kOkBytes, {memory.get(), memory.get()}},        // two of them
      {kOkBytes, std::vector<int>(60, memory.get())},  // so many that they are cut off
      {std::string(4000, '\0'), {memory.get()}},       // too long
  };
  for (const auto& [bytes, fds] : answers) {
    Pair pair = Connected();
    SendRaw(pair.daemon.get(), bytes, fds);
    EXPECT_EQ(RedeemFd(pair.client, "t", Soon()).status().code(), absl::StatusCode::kInternal)
        << bytes.size() << " bytes, " << fds.size() << " descriptors";
  }
  EXPECT_EQ(NextDescriptor(), before) << "a descriptor leaked";
}

TEST(FdChannel, DescriptorsBesideARefusalAreClosed) {
  const Descriptor memory = Memory(1);
  Pair pair = Connected();
  const int before = NextDescriptor();
  SendRaw(pair.daemon.get(), std::string("\5\0\0\0no", 6), {memory.get()});
  EXPECT_EQ(RedeemFd(pair.client, "t", Soon()).status(), absl::NotFoundError("no"));
  EXPECT_EQ(NextDescriptor(), before);
}

TEST(FdChannel, UnknownCodesAreUnknown) {
  Pair pair = Connected();
  SendRaw(pair.daemon.get(), "\x7f\x7f\x7f\x7fhm", {});
  EXPECT_EQ(RedeemFd(pair.client, "t", Soon()).status(), absl::UnknownError("hm"));
}

TEST(ReceiveToken, TakesNoDescriptorsFromAPeer) {
  const Descriptor memory = Memory(1);
  Pair pair = Connected();
  const int before = NextDescriptor();
  SendRaw(pair.client.get(), "token", {memory.get(), memory.get()});
  absl::StatusOr<std::string> token = ReceiveToken(pair.daemon.get());
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*token, "token");
  EXPECT_EQ(NextDescriptor(), before);
}

TEST(ReceiveToken, RefusesAPacketThatIsTooLong) {
  Pair pair = Connected();
  SendRaw(pair.client.get(), std::string(wire::kFdTokenBytesMax, 'x'), {});
  EXPECT_TRUE(ReceiveToken(pair.daemon.get()).ok());
  SendRaw(pair.client.get(), std::string(wire::kFdTokenBytesMax + 1, 'x'), {});
  EXPECT_EQ(ReceiveToken(pair.daemon.get()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReceiveToken, NeverWaits) {
  Pair pair = Connected();
  EXPECT_EQ(ReceiveToken(pair.daemon.get()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SendAnswer, NeverWaitsForAPeerThatDoesNotRead) {
  Pair pair = Connected();
  const Descriptor memory = Memory(1);
  absl::Status status;
  for (int i = 0; i < 100000 && status.ok(); ++i) {
    status = SendAnswer(pair.daemon.get(), absl::OkStatus(), memory.get());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(ConnectFdSocket, SaysWhyNot) {
  EXPECT_EQ(ConnectFdSocket("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectFdSocket(std::string(108, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status missing = ConnectFdSocket("/tmp/no/such/socket.fd").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/tmp/no/such/socket.fd: No such file"));
}

TEST(ConnectFdSocket, Connects) {
  char folder[] = "/tmp/kvfd.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s.fd";
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  EXPECT_TRUE(ConnectFdSocket(path).ok());
  unlink(path.c_str());
  rmdir(folder);
}

TEST(Descriptor, OwnsOneDescriptor) {
  const int before = NextDescriptor();
  {
    Descriptor a = Memory(1);
    Descriptor b = std::move(a);
    EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): that is what is tested
    b = Memory(2);
    EXPECT_EQ(SizeOf(b), 2);
    Descriptor& self = b;
    b = std::move(self);
    EXPECT_EQ(SizeOf(b), 2);
  }
  EXPECT_EQ(NextDescriptor(), before);
}

}  // namespace
}  // namespace kvtier
