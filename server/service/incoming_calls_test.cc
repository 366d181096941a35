#include "server/service/incoming_calls.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = IncomingCalls::Kind;
using Place = std::shared_ptr<IncomingCalls::Place>;

constexpr absl::Duration kReceiving = absl::Seconds(10);

class IncomingCallsTest : public ::testing::Test {
 protected:
  void Make(const IncomingCalls::Limits& limits) {
    calls_ = std::make_shared<IncomingCalls>(limits, &clock_);
  }
  absl::StatusOr<Place> Begin(const std::string& connection, const std::string& peer,
                              Kind kind = Kind::kOneRequest) {
    return calls_->Begin({connection, peer}, kind);
  }
  // A call that waits for its turn to be received, and notes its `name` when it comes.
  Place Receive(const std::string& name, const std::string& connection, const std::string& peer) {
    Place place = Begin(connection, peer).value();
    calls_->Receive(
        place, [this, name] { started_.push_back(name); }, [this, name] { late_.push_back(name); });
    return place;
  }

  ManualClock clock_{absl::FromUnixSeconds(1'000'000'000)};
  std::shared_ptr<IncomingCalls> calls_;
  std::vector<std::string> started_, late_;
};

TEST_F(IncomingCallsTest, AConnectionHasSoManyCalls) {
  Make({.calls_max = 100, .calls_of_connection_max = 2});
  Place first = Begin("fd:1", "a").value();
  const Place second = Begin("fd:1", "a").value();
  const absl::Status refused = Begin("fd:1", "a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(refused), "LIMIT_REACHED");
  EXPECT_TRUE(Begin("fd:2", "a").ok());
  first.reset();
  EXPECT_TRUE(Begin("fd:1", "a").ok());
  EXPECT_EQ(calls_->calls(), 1);
}

TEST_F(IncomingCallsTest, WhoTakesMuchLeavesAsMuch) {
  Make({.calls_max = 8, .calls_of_connection_max = 8});
  std::vector<Place> places;
  const auto take = [&](const std::string& peer) {
    int taken = 0;
    for (;; ++taken) {
      absl::StatusOr<Place> place = Begin(absl::StrCat(peer, taken), peer);
      if (!place.ok()) return taken;
      places.push_back(*std::move(place));
    }
  };
  EXPECT_EQ(take("a"), 4);
  EXPECT_EQ(take("b"), 2);
  EXPECT_EQ(take("c"), 1);
  places.clear();
  EXPECT_EQ(take("d"), 4);
}

// However many processes it starts.
TEST_F(IncomingCallsTest, AUserLeavesAsMuchToOthers) {
  Make({.calls_max = 64, .calls_reserved = 0});
  std::vector<Place> places;
  const auto take = [&](const std::string& user, const std::string& process) {
    int taken = 0;
    for (;; ++taken) {
      absl::StatusOr<Place> place =
          calls_->Begin({absl::StrCat(process, taken), process, user}, Kind::kOneRequest);
      if (!place.ok()) return taken;
      places.push_back(*std::move(place));
    }
  };
  EXPECT_EQ(take("u", "first"), 16) << "half of what the user may have";
  int all = 16;
  for (int i = 0; i < 20; ++i) all += take("u", absl::StrCat("process ", i));
  EXPECT_LE(all, 32);
  EXPECT_GT(all, 28);
  EXPECT_GE(take("v", "another's"), 8);
}

TEST_F(IncomingCallsTest, TheLastAreForOperators) {
  Make({.calls_max = 32, .receiving_max = 32, .calls_reserved = 2, .receiving_reserved = 2});
  std::vector<Place> places;
  int started = 0;
  const auto take = [&](const IncomingCalls::Caller& caller) {
    absl::StatusOr<Place> place = calls_->Begin(caller, Kind::kOneRequest);
    if (!place.ok()) return false;
    places.push_back(*place);
    calls_->Receive(
        *place, [&started] { ++started; }, [] {});
    return true;
  };
  for (int i = 0; i < 100; ++i) take({absl::StrCat(i), absl::StrCat(i), absl::StrCat(i)});
  EXPECT_EQ(calls_->calls(), 30);
  EXPECT_EQ(started, 30);
  EXPECT_TRUE(take({.connection = "o", .peer = "o", .user = "0", .is_operator = true}));
  EXPECT_EQ(started, 31) << "it is received at once";
}

TEST_F(IncomingCallsTest, WhatIsKeptCountsUntilItsCallIsOver) {
  Make({.kept_bytes_max = 1000});
  Place first = Begin("fd:1", "a").value(), second = Begin("fd:2", "a").value(),
        other = Begin("fd:3", "b").value();
  EXPECT_TRUE(calls_->Keep(first.get(), 400).ok());
  const absl::Status refused = calls_->Keep(second.get(), 201);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(refused), "LIMIT_REACHED");
  EXPECT_TRUE(calls_->Keep(other.get(), 300).ok()) << "there is some for others";
  first.reset();
  EXPECT_TRUE(calls_->Keep(second.get(), 201).ok());
}

TEST_F(IncomingCallsTest, WatchesHaveALimitOfTheirOwn) {
  Make({.watches_of_peer_max = 1});
  Place watch = Begin("fd:1", "a", Kind::kWatch).value();
  EXPECT_FALSE(Begin("fd:2", "a", Kind::kWatch).ok());
  EXPECT_TRUE(Begin("fd:2", "a").ok());
  EXPECT_TRUE(Begin("fd:3", "b", Kind::kWatch).ok());
  watch.reset();
  EXPECT_TRUE(Begin("fd:2", "a", Kind::kWatch).ok());
}

TEST_F(IncomingCallsTest, WatchesOfStatisticsHaveALimitOfTheirOwn) {
  Make({.watches_of_peer_max = 1, .stats_watches_of_peer_max = 1});
  Place watch = Begin("fd:1", "a", Kind::kStatsWatch).value();
  const absl::Status refused = Begin("fd:2", "a", Kind::kStatsWatch).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(refused), "LIMIT_REACHED");
  EXPECT_TRUE(Begin("fd:2", "a").ok());
  EXPECT_TRUE(Begin("fd:2", "a", Kind::kWatch).ok());
  EXPECT_TRUE(Begin("fd:3", "b", Kind::kStatsWatch).ok());
  watch.reset();
  EXPECT_TRUE(Begin("fd:2", "a", Kind::kStatsWatch).ok());
}

TEST_F(IncomingCallsTest, StreamsHaveALimitOfTheirOwn) {
  Make({.streams_max = 8, .streams_of_connection_max = 1});
  const Place stream = Begin("fd:1", "a", Kind::kStream).value();
  EXPECT_FALSE(Begin("fd:1", "a", Kind::kStream).ok());
  EXPECT_TRUE(Begin("fd:1", "a").ok());
  EXPECT_TRUE(Begin("fd:2", "a", Kind::kStream).ok());
}

TEST_F(IncomingCallsTest, ConnectionsTakeTurns) {
  Make({.receiving_max = 2, .receiving_of_connection_max = 8});
  const Place a = Receive("a", "fd:1", "one");
  EXPECT_THAT(started_, ElementsAre("a"));
  // The other place is for others.
  const Place b = Receive("b", "fd:1", "one"), c = Receive("c", "fd:1", "one");
  EXPECT_THAT(started_, ElementsAre("a"));
  const Place d = Receive("d", "fd:2", "one"), e = Receive("e", "fd:3", "two");
  EXPECT_THAT(started_, ElementsAre("a", "e"));
  calls_->Received(e.get());
  calls_->Received(a.get());
  calls_->Received(b.get());
  calls_->Received(d.get());
  EXPECT_THAT(started_, ElementsAre("a", "e", "b", "d", "c"));
  calls_->Received(c.get());
  EXPECT_EQ(calls_->receiving(), 0);
}

TEST_F(IncomingCallsTest, AConnectionReceivesSoManyAtATime) {
  Make({.receiving_max = 32, .receiving_of_connection_max = 2});
  const Place a = Receive("a", "fd:1", "one"), b = Receive("b", "fd:1", "one"),
              c = Receive("c", "fd:1", "one"), d = Receive("d", "fd:2", "one");
  EXPECT_THAT(started_, ElementsAre("a", "b", "d"));
  calls_->Received(b.get());
  EXPECT_THAT(started_, ElementsAre("a", "b", "d", "c"));
}

TEST_F(IncomingCallsTest, WhatTakesTooLongIsGivenUpOnce) {
  Make(
      {.receiving_max = 4, .receiving_of_connection_max = 1, .receiving_duration_max = kReceiving});
  const Place a = Receive("a", "fd:1", "one"), b = Receive("b", "fd:1", "one");
  clock_.Advance(kReceiving - absl::Seconds(1));
  const Place c = Receive("c", "fd:2", "two");
  calls_->GiveUpLate();
  EXPECT_THAT(late_, IsEmpty());
  clock_.Advance(absl::Seconds(1));
  calls_->GiveUpLate();
  calls_->GiveUpLate();
  EXPECT_THAT(late_, ElementsAre("a"));
  // It has its place until gRPC has let go of it.
  EXPECT_THAT(started_, ElementsAre("a", "c"));
  calls_->Received(a.get());
  EXPECT_THAT(started_, ElementsAre("a", "c", "b"));
}

}  // namespace
}  // namespace kvtier
