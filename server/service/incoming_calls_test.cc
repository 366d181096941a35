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
