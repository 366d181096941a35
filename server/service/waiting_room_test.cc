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
  EXPECT_FALSE(room.Enter(std::move(waiting)).has_value());
  ASSERT_NE(room.Find(fd), nullptr);
  EXPECT_EQ(room.Leave(fd)->peer.pid, 1);
  EXPECT_EQ(room.Find(fd), nullptr);
  EXPECT_FALSE(room.Leave(fd).has_value());
  EXPECT_EQ(room.size(), 0);
}

TEST(WaitingRoom, AFloodPushesOutItself) {
  WaitingRoom room(8, kPatience);
  WaitingRoom::Waiting good = Of(7, 0);
  const int good_fd = good.fd.get();
  EXPECT_FALSE(room.Enter(std::move(good)).has_value());
  for (int i = 0; i < 100; ++i) {
    const auto away = room.Enter(Of(666, 1 + i));
    EXPECT_EQ(away.has_value(), i >= 7);
    if (!away.has_value()) continue;
    EXPECT_EQ(away->peer.pid, 666);
    EXPECT_EQ(away->since, absl::FromUnixSeconds(1 + i - 7)) << "the one that waited for longest";
  }
  EXPECT_NE(room.Find(good_fd), nullptr) << "who came first, and is alone, stays";
  EXPECT_EQ(room.size(), 8);
}

TEST(WaitingRoom, NobodyWaitsForEver) {
  WaitingRoom room(8, kPatience);
  for (int at : {0, 5, 9}) EXPECT_FALSE(room.Enter(Of(1, at)).has_value());
  EXPECT_THAT(room.SendAwayLate(absl::FromUnixSeconds(9)), SizeIs(0));
  EXPECT_THAT(room.SendAwayLate(absl::FromUnixSeconds(15)), SizeIs(2));
  EXPECT_EQ(room.size(), 1);
}

TEST(WaitingRoom, NobodyIsThereToBeSentAway) {
  WaitingRoom room(8, kPatience);
  EXPECT_FALSE(room.SendAway().has_value());
}

}  // namespace
}  // namespace kvtier
