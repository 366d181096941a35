#include "server/service/peer_table.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/shared_memory.h"

namespace kvtier {
namespace {

using ::testing::Optional;

// Both ends are of this process, so that this is its peer.
std::pair<UniqueFd, UniqueFd> NewConnection() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string NameOf(const UniqueFd& fd) { return absl::StrCat("fd:", fd.get()); }

TEST(PeerTable, KnowsWhoIsThere) {
  PeerTable table({.connections_max = 4, .per_process_max = 4});
  const auto [ours, theirs] = NewConnection();
  EXPECT_EQ(table.Add(ours.get()), std::nullopt);
  EXPECT_EQ(table.Find(NameOf(ours)).pid, getpid());
  EXPECT_EQ(table.Find("ipv4:127.0.0.1:1").pid, -1);
  EXPECT_EQ(table.open(), 1);
}

TEST(PeerTable, OneProcessGetsItsShareAndNoMore) {
  PeerTable table({.connections_max = 8, .per_process_max = 2});
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 3; ++i) connections.push_back(NewConnection());
  EXPECT_EQ(table.Add(connections[0].first.get()), std::nullopt);
  EXPECT_EQ(table.Add(connections[1].first.get()), std::nullopt);
  EXPECT_THAT(table.Add(connections[2].first.get()), Optional(Refusal::kProcessFull));
  // What has ended takes no place, though nobody has said so.
  connections[0].first = UniqueFd();
  const auto fresh = NewConnection();
  EXPECT_EQ(table.Add(fresh.first.get()), std::nullopt);
  EXPECT_EQ(table.open(), 2);
}

TEST(PeerTable, TheLastPlacesAreForOperators) {
  std::vector<std::pair<UniqueFd, UniqueFd>> connections;
  for (int i = 0; i < 3; ++i) connections.push_back(NewConnection());
  const auto uid = static_cast<int32_t>(getuid());
  PeerTable of_operators({.connections_max = 2, .per_process_max = 8, .operator_uid = uid});
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(of_operators.Add(connections[i].first.get()));
  EXPECT_THAT(of_operators.Add(connections[2].first.get()), Optional(Refusal::kFull));
  if (uid == 0) GTEST_SKIP() << "root is an operator everywhere";
  PeerTable of_others(
      {.connections_max = 2, .per_process_max = 8, .reserved = 1, .operator_uid = uid + 1});
  EXPECT_FALSE(of_others.Add(connections[0].first.get()));
  EXPECT_THAT(of_others.Add(connections[1].first.get()), Optional(Refusal::kFull));
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
  // Over TCP there are neither.
  for (int i = 5; i < 8; ++i) EXPECT_EQ(add(i, -1, -1), std::nullopt);
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
  ASSERT_EQ(table.Add(ours.get()), std::nullopt);
  const int64_t id = table.IdOf(NameOf(ours));
  EXPECT_EQ(table.FindById(id).pid, getpid());
  EXPECT_TRUE(table.End(id));
  char byte = 0;
  EXPECT_EQ(read(theirs.get(), &byte, 1), 0) << "the other side is told";
  ours = UniqueFd();
  EXPECT_FALSE(table.End(id));
  EXPECT_EQ(table.IdOf("ipv4:127.0.0.1:1"), 0);
  EXPECT_FALSE(table.End(0));
}

TEST(PeerTable, DoesNotEndTheNextConnectionOfThatName) {
  PeerTable table({.connections_max = 4, .per_process_max = 4});
  auto [old, old_peer] = NewConnection();
  ASSERT_EQ(table.Add(old.get()), std::nullopt);
  const std::string name = NameOf(old);
  const int64_t id = table.IdOf(name);
  auto [next, next_peer] = NewConnection();
  ASSERT_EQ(dup2(next.get(), old.get()), old.get());
  EXPECT_FALSE(table.End(id)) << "before it is added";
  ASSERT_EQ(table.Add(old.get()), std::nullopt);
  EXPECT_FALSE(table.End(id));
  EXPECT_EQ(table.FindById(id).pid, -1);
  EXPECT_EQ(send(next_peer.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(table.End(table.IdOf(name)));
}

}  // namespace
}  // namespace kvtier
