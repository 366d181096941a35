#include "server/service/waiting_room.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier {
namespace {

using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(10);

// A connection of process `pid` that came at second `at`. Any descriptor does.
WaitingRoom::Waiting Of(int32_t pid, int at) {
  return {.fd = UniqueFd(dup(STDERR_FILENO)),
          .peer = {.pid = pid, .uid = 1000},
          .since = absl::FromUnixSeconds(at)};
}

TEST(WaitingRoom, WhoSpeaksLeaves) {
  WaitingRoom room(4, kPatience);
  WaitingRoom::Waiting waiting = Of(1, 0);
  const int fd = waiting.fd.get();
  room.Enter(std::move(waiting));
  ASSERT_NE(room.Find(fd), nullptr);
  EXPECT_EQ(room.Leave(fd)->peer.pid, 1);
  EXPECT_EQ(room.Find(fd), nullptr);
  EXPECT_FALSE(room.Leave(fd).has_value());
  EXPECT_EQ(room.size(), 0);
}

TEST(WaitingRoom, AFloodOfOneAddressPushesOutItself) {
  WaitingRoom room(3, kPatience);
  const auto of = [](const char* address, int at) {
    WaitingRoom::Waiting waiting = Of(-1, at);
    waiting.peer.uid = -1;
    waiting.address = address;
    return waiting;
  };
  room.Enter(of("192.0.2.1", 0));
  room.Enter(of("192.0.2.2", 1));
  room.Enter(of("192.0.2.2", 2));
  ASSERT_NE(room.NextToGo(), nullptr);
  EXPECT_EQ(room.NextToGo()->address, "192.0.2.2");
}

TEST(WaitingRoom, AFloodPushesOutItself) {
  WaitingRoom room(8, kPatience);
  WaitingRoom::Waiting good = Of(7, 0);
  const int good_fd = good.fd.get();
  room.Enter(std::move(good));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(room.full(), i >= 7);
    if (room.full()) {
      const WaitingRoom::Waiting* const next = room.NextToGo();
      EXPECT_EQ(next->peer.pid, 666);
      EXPECT_EQ(next->since, absl::FromUnixSeconds(1 + i - 7)) << "the one that waited for longest";
      room.Leave(next->fd.get());
    }
    room.Enter(Of(666, 1 + i));
  }
  EXPECT_NE(room.Find(good_fd), nullptr) << "who came first, and is alone, stays";
  EXPECT_EQ(room.size(), 8);
}

TEST(WaitingRoom, NobodyWaitsForEver) {
  WaitingRoom room(8, kPatience);
  for (int at : {0, 5, 9}) room.Enter(Of(1, at));
  EXPECT_THAT(room.SendAwayLate(absl::FromUnixSeconds(9)), SizeIs(0));
  EXPECT_THAT(room.SendAwayLate(absl::FromUnixSeconds(15)), SizeIs(2));
  EXPECT_EQ(room.size(), 1);
}

TEST(WaitingRoom, NobodyIsThereToBeSentAway) {
  WaitingRoom room(8, kPatience);
  EXPECT_EQ(room.NextToGo(), nullptr);
}

}  // namespace
}  // namespace kvtier
