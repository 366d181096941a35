#include "server/service/peer_table.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/shared_memory.h"
#include "server/service/tcp_listener.h"

namespace kvtier {
namespace {

using ::testing::Optional;

// Both ends are of this process, so that this is its peer.
std::pair<UniqueFd, UniqueFd> NewConnection() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<Refusal> Add(PeerTable& table, const UniqueFd& connection) {
  return table.Add(connection.get(), PeerOf(connection.get()));
}

std::string NameOf(const UniqueFd& fd) { return absl::StrCat("fd:", fd.get()); }

TEST(PeerTable, KnowsWhoIsThere) {
  PeerTable table({.connections_max = 4, .per_process_max = 4});
  const auto [ours, theirs] = NewConnection();
  EXPECT_EQ(Add(table, ours), std::nullopt);
  EXPECT_EQ(table.Find(NameOf(ours)).peer.pid, getpid());
  EXPECT_EQ(table.Find("ipv4:127.0.0.1:1").peer.pid, -1);
  EXPECT_EQ(table.open(), 1);
}

// As places are counted (Addresses, below), so are calls, which know the name alone.
TEST(PeerTable, NamesOfTcpConnectionsCountAsTheirAddresses) {
  EXPECT_EQ(AddressOf("ipv4:192.0.2.1:4711"), "192.0.2.1");
  EXPECT_EQ(AddressOf("ipv4:127.0.0.1:1"), "loopback");
  EXPECT_EQ(AddressOf("ipv4:127.8.9.1:2"), "loopback");
  EXPECT_EQ(AddressOf("ipv6:[::1]:4711"), "loopback");
  EXPECT_EQ(AddressOf("ipv6:%5B::1%5D:4711"), "loopback");
  // One machine may have all addresses behind the first 64 bits.
  EXPECT_EQ(AddressOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711"), "2001:db8:1:2::/64");
  EXPECT_EQ(AddressOf("ipv6:[2001:db8:1:2::9]:12"), "2001:db8:1:2::/64");
  EXPECT_EQ(AddressOf("ipv6:%5Bfe80::1%25eth0%5D:4711"), "fe80::/64");
  EXPECT_EQ(AddressOf("ipv6:%5B::ffff:192.0.2.1%5D:4711"), "192.0.2.1");
  for (const char* const name : {"", "unix:", "ipv4:", "ipv4:x:1", "ipv6:%5B%5D:1", "fd:17"}) {
    EXPECT_EQ(AddressOf(name), name);
  }
}

TEST(PeerTable, OneProcessGetsItsShareAndNoMore) {
  PeerTable table({.connections_max = 8, .per_process_max = 2});
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 3; ++i) connections.push_back(NewConnection());
  EXPECT_EQ(Add(table, connections[0].first), std::nullopt);
  EXPECT_EQ(Add(table, connections[1].first), std::nullopt);
  EXPECT_THAT(Add(table, connections[2].first), Optional(Refusal::kProcessFull));
  // What has ended takes no place, though nobody has said so.
  connections[0].first = UniqueFd();
  const auto fresh = NewConnection();
  EXPECT_EQ(Add(table, fresh.first), std::nullopt);
  EXPECT_EQ(table.open(), 2);
}

TEST(PeerTable, TheLastPlacesAreForOperators) {
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 3; ++i) connections.push_back(NewConnection());
  const auto uid = static_cast<int32_t>(getuid());
  PeerTable of_operators({.connections_max = 2, .per_process_max = 8, .operator_uid = uid});
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Add(of_operators, connections[i].first));
  EXPECT_THAT(Add(of_operators, connections[2].first), Optional(Refusal::kFull));
  if (uid == 0) GTEST_SKIP() << "root is an operator everywhere";
  PeerTable of_others(
      {.connections_max = 2, .per_process_max = 8, .reserved = 1, .operator_uid = uid + 1});
  EXPECT_FALSE(Add(of_others, connections[0].first));
  EXPECT_THAT(Add(of_others, connections[1].first), Optional(Refusal::kFull));
}

TEST(PeerTable, ProcessesWithoutANameCountByTheirUser) {
  PeerTable table({.connections_max = 8, .per_process_max = 2});
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 8; ++i) connections.push_back(NewConnection());
  const auto add = [&](int i, pid_t pid, int32_t uid) {
    return table.Add(connections[i].first.get(), {.pid = pid, .uid = uid});
  };
  EXPECT_EQ(add(0, -1, 1000), std::nullopt);
  EXPECT_EQ(add(1, -1, 1000), std::nullopt);
  EXPECT_THAT(add(2, -1, 1000), Optional(Refusal::kProcessFull));
  // Others have theirs, and so has a process of that user that the kernel names.
  EXPECT_EQ(add(3, -1, 1001), std::nullopt);
  EXPECT_EQ(add(4, 17, 1000), std::nullopt);
}

class Addresses : public ::testing::Test {
 protected:
  std::optional<Refusal> Come(PeerTable* table, const std::string& address) {
    connections_.push_back(NewConnection());
    return table->Add(connections_.back().first.get(), {}, address);
  }
  void Leave(size_t index) { connections_[index].first.Reset(); }

 private:
  std::vector<std::pair<UniqueFd, UniqueFd>> connections_;
};

TEST_F(Addresses, OneGetsItsShareAndNoMore) {
  PeerTable table({.connections_max = 8, .per_process_max = 0, .per_address_max = 2});
  EXPECT_EQ(Come(&table, "192.0.2.1"), std::nullopt);
  EXPECT_EQ(Come(&table, "192.0.2.1"), std::nullopt);
  EXPECT_THAT(Come(&table, "192.0.2.1"), Optional(Refusal::kAddressFull));
  EXPECT_EQ(Come(&table, "192.0.2.2"), std::nullopt);
  // What has ended takes no place, though nobody has said so.
  Leave(0);
  EXPECT_EQ(Come(&table, "192.0.2.1"), std::nullopt);
}

// However many of them come, and as often as they like: there is room for the next.
TEST_F(Addresses, TheyLeaveAPlaceForAnother) {
  PeerTable table({.connections_max = 12, .per_address_max = 12});
  for (const char* const address : {"192.0.2.1", "192.0.2.2", "192.0.2.3"}) {
    for (int i = 0; i < 12; ++i) Come(&table, address);
    EXPECT_THAT(Come(&table, address), Optional(Refusal::kAddressFull));
    EXPECT_LT(table.open(), 12);
  }
  EXPECT_EQ(Come(&table, "192.0.2.4"), std::nullopt);
}

class Tcp : public ::testing::Test {
 protected:
  // The daemon's end of a connection from `from` to `to`, both numbers of this machine. The other
  // end has gone.
  static UniqueFd Accepted(const std::string& from, const std::string& to) {
    const auto listener = TcpListener::Listen(absl::StrCat(to, ":0"));
    EXPECT_TRUE(listener.ok()) << listener.status();
    if (!listener.ok()) return UniqueFd();
    const int listening = listener->fds()[0].get();
    sockaddr_storage there = {}, here = {};
    socklen_t size = sizeof(there);
    getsockname(listening, reinterpret_cast<sockaddr*>(&there), &size);
    UniqueFd peer(socket(there.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    here.ss_family = there.ss_family;
    if (here.ss_family == AF_INET6) {
      inet_pton(AF_INET6, from.c_str(), &reinterpret_cast<sockaddr_in6*>(&here)->sin6_addr);
    } else {
      inet_pton(AF_INET, from.c_str(), &reinterpret_cast<sockaddr_in*>(&here)->sin_addr);
    }
    EXPECT_EQ(bind(peer.get(), reinterpret_cast<sockaddr*>(&here), size), 0);
    EXPECT_EQ(connect(peer.get(), reinterpret_cast<sockaddr*>(&there), size), 0);
    pollfd ready = {.fd = listening, .events = POLLIN};
    EXPECT_EQ(poll(&ready, 1, -1), 1);
    return UniqueFd(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  }
  static std::string AddressFrom(const std::string& from, const std::string& to) {
    return AddressOf(Accepted(from, to).get());
  }
};

// Nobody else asks (server_arguments.cc).
TEST_F(Tcp, TheKernelAsksWhetherPeersLive) {
  const UniqueFd accepted = Accepted("127.0.0.1", "127.0.0.1");
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(accepted.get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 60);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 60);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 10);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 660000);
}

TEST_F(Tcp, LoopbackIsOneAddress) {
  // Any user of the machine has 2^24 of them.
  EXPECT_EQ(AddressFrom("127.0.0.1", "127.0.0.1"), "loopback");
  EXPECT_EQ(AddressFrom("127.7.7.7", "127.0.0.1"), "loopback");
  const auto [ours, theirs] = NewConnection();
  EXPECT_EQ(AddressOf(ours.get()), "");
}

TEST_F(Tcp, AddressesCountAsAWholeOrByTheirNetwork) {
  const auto of = [](int family, const char* text) {
    in6_addr address = {};
    EXPECT_EQ(inet_pton(family, text, &address), 1);
    return CountedAs(family, &address);
  };
  EXPECT_EQ(of(AF_INET, "192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(of(AF_INET, "127.0.0.2"), "loopback");
  EXPECT_EQ(of(AF_INET6, "::ffff:192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(of(AF_INET6, "::ffff:127.0.0.1"), "loopback");
  EXPECT_EQ(of(AF_INET6, "::1"), "loopback");
  EXPECT_EQ(of(AF_INET6, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(of(AF_INET6, "2001:db8:1:2::9"), "2001:db8:1:2::/64");
  EXPECT_EQ(of(AF_INET6, "2001:db8:1:3::9"), "2001:db8:1:3::/64");
}

TEST(PeerTable, WhoIsMadeAnOperatorGetsTheLastPlaces) {
  PeerTable table({.connections_max = 3, .per_process_max = 3, .reserved = 2, .operator_uid = 1});
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 4; ++i) connections.push_back(NewConnection());
  const auto add = [&](int i, int32_t uid) {
    return table.Add(connections[i].first.get(), {.pid = 17 + i, .uid = uid});
  };
  EXPECT_EQ(add(0, 1000), std::nullopt);
  EXPECT_THAT(add(1, 1001), Optional(Refusal::kFull));
  table.SetOperators({1001});
  EXPECT_EQ(add(1, 1001), std::nullopt);
  table.SetOperators({});
  EXPECT_THAT(add(2, 1001), Optional(Refusal::kFull));
  EXPECT_EQ(add(2, 0), std::nullopt);
}

TEST(PeerTable, EndsAConnection) {
  PeerTable table({.connections_max = 4, .per_process_max = 4});
  auto [ours, theirs] = NewConnection();
  ASSERT_EQ(Add(table, ours), std::nullopt);
  const int64_t id = table.Find(NameOf(ours)).id;
  EXPECT_EQ(table.FindById(id).pid, getpid());
  EXPECT_TRUE(table.End(id));
  char byte = 0;
  EXPECT_EQ(read(theirs.get(), &byte, 1), 0) << "the other side is told";
  ours = UniqueFd();
  EXPECT_FALSE(table.End(id));
  EXPECT_EQ(table.Find("ipv4:127.0.0.1:1").id, 0);
  EXPECT_FALSE(table.End(0));
}

TEST(PeerTable, DoesNotEndTheNextConnectionOfThatName) {
  PeerTable table({.connections_max = 4, .per_process_max = 4});
  auto [old, old_peer] = NewConnection();
  ASSERT_EQ(Add(table, old), std::nullopt);
  const std::string name = NameOf(old);
  const int64_t id = table.Find(name).id;
  auto [next, next_peer] = NewConnection();
  ASSERT_EQ(dup2(next.get(), old.get()), old.get());
  EXPECT_FALSE(table.End(id)) << "before it is added";
  ASSERT_EQ(Add(table, old), std::nullopt);
  EXPECT_FALSE(table.End(id));
  EXPECT_EQ(table.FindById(id).pid, -1);
  EXPECT_EQ(send(next_peer.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(table.End(table.Find(name).id));
}

}  // namespace
}  // namespace kvtier
