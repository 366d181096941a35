#include "server/service/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/mutex.h"
#include "server/service/unix_socket.h"

namespace kvtier {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr absl::string_view kSettings("\0\0\6\4\0\0\0\0\0\0\4\0\0\377\377", 15);
constexpr absl::Duration kPatience = absl::Seconds(60);  // only a failure waits so long

// An acceptor on a socket of its own.
class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest()
      : clock_(absl::FromUnixSeconds(1'000'000'000)), log_(&clock_, open("/dev/null", O_WRONLY)) {
    char name[] = "/tmp/kvt-accept-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~AcceptorTest() override {
    acceptor_.reset();
    listener_.reset();
    rmdir(folder_.c_str());
  }

  void Start(const Acceptor::Options& options) {
    auto listener = UnixListener::Listen(path(), SOCK_STREAM, {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::make_unique<UnixListener>(*std::move(listener));
    std::vector<Acceptor::Door> doors;
    doors.push_back({.listener = listener_->fd(), .take = [this](UniqueFd fd) {
                       taking_.fetch_add(1);
                       MutexLock lock(&mutex_);
                       served_.push_back(std::move(fd));
                       changed_.NotifyAll();
                     }});
    auto acceptor = Acceptor::Start(std::move(doors), options, &clock_, &log_, &counts_);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
  }

  std::string path() const { return folder_ + "/s"; }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  UniqueFd Say(absl::string_view words) {
    UniqueFd fd = Connect();
    Send(fd, words);
    return fd;
  }

  static void Send(const UniqueFd& fd, absl::string_view words) {
    EXPECT_EQ(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
  }

  // Waits until so many are served.
  bool WaitForServed(size_t count) {
    MutexLock lock(&mutex_);
    while (served_.size() < count) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return false;
    }
    return served_.size() == count;
  }

  // Waits until `condition` holds.
  static bool WaitUntil(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      sched_yield();
    }
    return true;
  }
  bool WaitForWaiting(int64_t count) const {
    return WaitUntil([&] { return counts_.waiting() == count; });
  }

  // Waits until the other side has closed it.
  static bool WaitForEnd(const UniqueFd& fd) {
    pollfd entry = {.fd = fd.get(), .events = POLLIN};
    char byte = 0;
    return poll(&entry, 1, 60000) == 1 && recv(fd.get(), &byte, 1, 0) <= 0;
  }

  ManualClock clock_;
  Log log_;
  ConnectionCounts counts_;
  std::string folder_;
  std::unique_ptr<UnixListener> listener_;
  std::atomic<int> taking_ = 0;  // whom the door has got, or waits for `mutex_` with
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> served_ KVTIER_GUARDED_BY(mutex_);
  std::unique_ptr<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, ServesWhoSpeaksHttp2) {
  Start({});
  const UniqueFd at_once = Say(absl::StrCat(kPreface, kSettings));
  ASSERT_TRUE(WaitForServed(1));
  // In pieces, and nothing of it is lost.
  const UniqueFd slow = Connect();
  const std::string words = absl::StrCat(kPreface, kSettings);
  for (const char c : words) Send(slow, absl::string_view(&c, 1));
  ASSERT_TRUE(WaitForServed(2));
  MutexLock lock(&mutex_);
  std::string got(words.size(), '\0');
  EXPECT_EQ(recv(served_[1].get(), got.data(), got.size(), 0), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, words);
}

TEST_F(AcceptorTest, ServesTlsToWhomeverChecksIt) {
  Start({});
  const UniqueFd peer = Say("\x16\x03\x01");
  EXPECT_TRUE(WaitForServed(1));
}

TEST_F(AcceptorTest, EndsWhoSaysSomethingElse) {
  Start({});
  EXPECT_TRUE(WaitForEnd(Say("GET / HTTP/1.1\r\n\r\n")));
  // Right, up to a byte.
  EXPECT_TRUE(WaitForEnd(Say("PRI * HTTP/2.0\r\n\r\nSM\r\n\rX")));
  // A preface, and then no settings.
  EXPECT_TRUE(WaitForEnd(Say(absl::StrCat(kPreface, std::string(9, '\1')))));
  EXPECT_EQ(counts_.refused(Refusal::kNotHttp2), 3);
  EXPECT_TRUE(WaitForServed(0));
}

TEST_F(AcceptorTest, EndsWhoDoesNotFinishInTime) {
  Start({});
  const UniqueFd silent = Connect(), half = Say(kPreface.substr(0, 10)),
                 almost = Say(absl::StrCat(kPreface, kSettings.substr(0, 12)));
  const UniqueFd good = Say(absl::StrCat(kPreface, kSettings));
  ASSERT_TRUE(WaitForServed(1));
  clock_.Advance(kFirstWordsMax);
  EXPECT_TRUE(WaitForEnd(silent));
  EXPECT_TRUE(WaitForEnd(half));
  EXPECT_TRUE(WaitForEnd(almost));
  EXPECT_EQ(counts_.refused(Refusal::kSilent), 3);
  // Who has spoken may be silent for as long as he likes.
  clock_.Advance(absl::Hours(24));
  Send(good, "x");
  EXPECT_TRUE(WaitForEnd(Say("x"))) << "the acceptor goes on";
}

TEST_F(AcceptorTest, WhoLeavesIsNotWaitedFor) {
  Start({});
  Connect().Reset();
  Say(kPreface.substr(0, 10)).Reset();
  const UniqueFd good = Say(kPreface.substr(0, 10));
  const UniqueFd later = Say(absl::StrCat(kPreface, kSettings));
  ASSERT_TRUE(WaitForServed(1));
  // All are waited for by now, and what is heard of one comes behind what the others did before.
  Send(good, absl::StrCat(kPreface.substr(10), kSettings));
  ASSERT_TRUE(WaitForServed(2));
  clock_.Advance(kFirstWordsMax);
  // By the second the turn of the first is over, in which they would have been sent away.
  EXPECT_TRUE(WaitForEnd(Say("x")));
  EXPECT_TRUE(WaitForEnd(Say("x")));
  EXPECT_EQ(counts_.refused(Refusal::kSilent), 0);
}

TEST_F(AcceptorTest, WhoSpeaksIsServedAmongManyWhoDoNot) {
  Start({.waiting_max = 8});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  const UniqueFd good = Say(absl::StrCat(kPreface, kSettings));
  EXPECT_TRUE(WaitForServed(1));
  EXPECT_TRUE(WaitForEnd(silent[0]));
  EXPECT_GE(counts_.refused(Refusal::kCrowded), 91);
}

// gRPC spends more on a connection than all that is done before, also on one that has ended.
TEST_F(AcceptorTest, WhoHasSpokenAndLeftIsNotHandedOn) {
  Start({});
  UniqueFd first, good;
  {
    // The acceptor's thread stands still in the door until all of them have come.
    MutexLock lock(&mutex_);
    first = Say(absl::StrCat(kPreface, kSettings));
    ASSERT_TRUE(WaitUntil([&] { return taking_.load() == 1; }));
    for (int i = 0; i < 3; ++i) Say(absl::StrCat(kPreface, kSettings)).Reset();
    Say("\x16\x03\x01").Reset();
    good = Say(absl::StrCat(kPreface, kSettings));
  }
  EXPECT_TRUE(WaitForServed(2));
}

// The acceptor's thread stands still in a door, so that its next turn finds first that somebody
// knocks, and then that the oldest of those who wait has hung up.
TEST_F(AcceptorTest, AHangUpIsOfWhoeverHadTheDescriptorThen) {
  Start({.waiting_max = 2});
  const UniqueFd first = Connect();
  ASSERT_TRUE(WaitForWaiting(1));
  const UniqueFd old = Connect();
  ASSERT_TRUE(WaitForWaiting(2));
  std::vector<UniqueFd> knocking;
  {
    MutexLock lock(&mutex_);
    Send(first, absl::StrCat(kPreface, kSettings));
    ASSERT_TRUE(WaitUntil([&] { return taking_.load() == 1; }));
    for (int i = 0; i < 3; ++i) knocking.push_back(Connect());
    ASSERT_EQ(shutdown(old.get(), SHUT_RDWR), 0);
  }
  ASSERT_TRUE(WaitForServed(1));
  // The second of them takes the place of the old one, and the third its descriptor and the place
  // of the first.
  EXPECT_TRUE(WaitForEnd(knocking[0]));
  ASSERT_TRUE(WaitForWaiting(2));
  Send(knocking[2], absl::StrCat(kPreface, kSettings));
  EXPECT_TRUE(WaitForServed(2));
}

}  // namespace
}  // namespace kvtier
