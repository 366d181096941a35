#include "server/service/fd_server.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/support/fd_channel.h"
#include "server/core/mutex.h"
#include "server/service/service_fixture.h"
#include "server/service/unix_socket.h"

namespace kvtier {
namespace {

class FdServerTest : public ::testing::Test {
 protected:
  FdServerTest() {
    server_ = *FdServer::Start(listener_.fd(), &clock_, &log_,
                               [this](absl::string_view token, Peer) { return Redeem(token); });
  }
  ~FdServerTest() override { LetGo(); }

  // A descriptor for every token; the thread stands still at the token "wait".
  absl::StatusOr<UniqueFd> Redeem(absl::string_view token) {
    MutexLock lock(&mutex_);
    if (token == "wait") waiting_ = true;
    changed_.NotifyAll();
    while (token == "wait" && !let_go_) changed_.Wait(&mutex_);
    return UniqueFd(memfd_create("test", MFD_CLOEXEC));
  }
  void WaitUntilItStandsStill() {
    MutexLock lock(&mutex_);
    while (!waiting_) changed_.Wait(&mutex_);
  }
  void LetGo() {
    MutexLock lock(&mutex_);
    let_go_ = true;
    changed_.NotifyAll();
  }

  Descriptor Connect() {
    auto socket = ConnectFdSocket(folder_.File("fd.sock"));
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : Descriptor();
  }
  static void Send(const Descriptor& socket, const std::string& token) {
    EXPECT_EQ(send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(token.size()));
  }
  // An answer with status OK; the descriptor is dropped.
  static ::testing::AssertionResult IsAnswered(const Descriptor& socket) {
    pollfd entry = {.fd = socket.get(), .events = POLLIN};
    if (poll(&entry, 1, 60'000) != 1) return ::testing::AssertionFailure() << "no answer";
    char bytes[64];
    const ssize_t size = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size == 4 && std::string(bytes, 4) == std::string(4, '\0')) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << size << " bytes: " << (size < 0 ? strerror(errno) : "");
  }

  SocketFolder folder_;
  UnixListener listener_ = *UnixListener::Listen(folder_.File("fd.sock"), SOCK_SEQPACKET, {});
  SystemClock clock_;
  Log log_{&clock_};
  Mutex mutex_;  // rank: leaf
  CondVar changed_;
  bool waiting_ KVTIER_GUARDED_BY(mutex_) = false;
  bool let_go_ KVTIER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<FdServer> server_;
};

// More workers than connections come in the time of one token: none of them may be taken for one
// that says nothing.
TEST_F(FdServerTest, WhoHasAskedIsAnsweredHoweverManyCome) {
  std::vector<Descriptor> workers;
  for (size_t i = 0; i < kFdConnectionsMax - 50; ++i) {
    workers.push_back(Connect());
    Send(workers.back(), "token");
    ASSERT_TRUE(IsAnswered(workers.back()));
  }
  const Descriptor first = Connect();
  Send(first, "wait");
  WaitUntilItStandsStill();
  for (const Descriptor& worker : workers) Send(worker, "token");
  for (int i = 0; i < 200; ++i) {  // as many as may wait to be accepted
    workers.push_back(Connect());
    Send(workers.back(), "token");
  }
  LetGo();
  EXPECT_TRUE(IsAnswered(first));
  for (size_t i = 0; i < workers.size(); ++i) ASSERT_TRUE(IsAnswered(workers[i])) << i;
}

TEST_F(FdServerTest, WhoSaysNothingKeepsNobodyOut) {
  std::vector<Descriptor> silent;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (size_t i = 0; i < 3 * kFdConnectionsMax; ++i) {
    silent.push_back(Connect());
    // Answered, it has been accepted, and so have those before it: no more wait than may.
    if (i % 100 == 0) {
      ASSERT_TRUE(RedeemFd(silent.back(), "token", deadline).ok());
    }
  }
  EXPECT_TRUE(RedeemFd(Connect(), "token", deadline).ok());
  EXPECT_TRUE(RedeemFd(silent.back(), "token", deadline).ok()) << "the last ones have places";
  EXPECT_FALSE(RedeemFd(silent.front(), "token", deadline).ok()) << "it was silent for longest";
}

}  // namespace
}  // namespace kvtier
