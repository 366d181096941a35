#include "server/service/service_manager.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvtier {
namespace {

// The manager's end, at an abstract address that the kernel chooses.
class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    name_ = "@" + std::string(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  }
  ~ServiceManagerTest() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }

  // Everything that was said since the last look.
  std::vector<std::string> Heard() const {
    std::vector<std::string> texts;
    char bytes[512];
    for (ssize_t size = 0; (size = recv(socket_.get(), bytes, sizeof(bytes), 0)) >= 0;) {
      texts.emplace_back(bytes, static_cast<size_t>(size));
    }
    return texts;
  }

  UniqueFd socket_;
  std::string name_;
};

using Texts = std::vector<std::string>;

TEST_F(ServiceManagerTest, SaysWhatHappens) {
  const ServiceManager manager(name_, absl::ZeroDuration());
  EXPECT_TRUE(manager.present());
  manager.Starting("pinning", absl::Seconds(2));
  manager.Ready("1 GiB");
  manager.Reloading(77);
  manager.Stopping("signal 15");
  EXPECT_EQ(Heard(),
            (Texts{"STATUS=pinning\nEXTEND_TIMEOUT_USEC=2000000\n", "READY=1\nSTATUS=1 GiB\n",
                   "RELOADING=1\nMONOTONIC_USEC=77\n", "STOPPING=1\nSTATUS=signal 15\n"}));
}

TEST_F(ServiceManagerTest, AStatusIsOneLine) {
  ServiceManager(name_, absl::ZeroDuration()).Ready("a\nMAINPID=1");
  EXPECT_EQ(Heard(), Texts{"READY=1\nSTATUS=a MAINPID=1\n"});
}

TEST_F(ServiceManagerTest, BeatsThriceInTheLimit) {
  ServiceManager manager(name_, absl::Seconds(30));
  const absl::Time start = absl::FromUnixSeconds(1769860800);
  for (int i = 0; i < 300; ++i) manager.Heartbeat(start + absl::Milliseconds(100) * i);
  EXPECT_EQ(Heard(), Texts(3, "WATCHDOG=1\n"));
  // The clock was set back.
  manager.Heartbeat(start - absl::Hours(1));
  EXPECT_EQ(Heard(), Texts(1, "WATCHDOG=1\n"));
}

TEST_F(ServiceManagerTest, BeatsForNobodyWhoDoesNotLook) {
  ServiceManager(name_, absl::ZeroDuration()).Heartbeat(absl::FromUnixSeconds(1));
  EXPECT_EQ(Heard(), Texts{});
}

TEST_F(ServiceManagerTest, TheEnvironmentSaysWhereAndHowOften) {
  setenv("NOTIFY_SOCKET", name_.c_str(), 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  ServiceManager::FromEnvironment().Heartbeat(absl::FromUnixSeconds(1));
  EXPECT_EQ(Heard(), Texts{"WATCHDOG=1\n"});
  // Another process is meant: this one was started by it.
  setenv("WATCHDOG_PID", "1", 1);
  ServiceManager::FromEnvironment().Heartbeat(absl::FromUnixSeconds(1));
  for (const char* odd : {"", "much", "-5"}) {
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", odd, 1);
    ServiceManager::FromEnvironment().Heartbeat(absl::FromUnixSeconds(1));
  }
  EXPECT_EQ(Heard(), Texts{});
}

TEST_F(ServiceManagerTest, NobodyThereIsNoTrouble) {
  EXPECT_FALSE(ServiceManager::FromEnvironment().present());
  for (const std::string& odd : {std::string(), std::string("relative"), std::string("vsock:2:1"),
                                 "/" + std::string(200, 'x')}) {
    const ServiceManager manager(odd, absl::ZeroDuration());
    EXPECT_FALSE(manager.present()) << odd;
    manager.Ready("");
  }
  ServiceManager("/nonexistent/notify", absl::ZeroDuration()).Ready("");
}

TEST_F(ServiceManagerTest, AManagerThatDoesNotReadStopsNobody) {
  const ServiceManager manager(name_, absl::ZeroDuration());
  for (int i = 0; i < 10000; ++i) manager.Ready("x");  // a queue of datagrams is short
  EXPECT_FALSE(Heard().empty());
}

}  // namespace
}  // namespace kvtier
