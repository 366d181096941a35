#include "server/service/unread_answers.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class UnreadAnswersTest : public ::testing::Test {
 protected:
  // Of a process of its own, if none is named.
  static UnreadAnswers::Reader ReaderOf(int64_t connection, const std::string& peer) {
    return {connection, peer.empty() ? "process of " + std::to_string(connection) : peer};
  }
  std::shared_ptr<UnreadAnswers::Place> Take(int64_t connection, int64_t bytes,
                                             const std::string& peer = "") {
    auto place = answers_->Take(ReaderOf(connection, peer), "s", bytes);
    EXPECT_TRUE(place.ok()) << place.status();
    return place.ok() ? *place : nullptr;
  }
  absl::Status Refused(int64_t connection, int64_t bytes, const std::string& peer = "") {
    return answers_->Take(ReaderOf(connection, peer), "s", bytes).status();
  }

  ManualClock clock_{absl::FromUnixSeconds(1'000'000'000)};
  const std::shared_ptr<UnreadAnswers> answers_ =
      std::make_shared<UnreadAnswers>(UnreadAnswers::Limits{.bytes_max = 100,
                                                            .bytes_of_peer_max = 150,
                                                            .bytes_of_all_max = 250,
                                                            .bytes_reserved = 250,
                                                            .deaf_bytes_min = 10},
                                      &clock_);
};

TEST_F(UnreadAnswersTest, AConnectionGetsSoMuchAndNoMore) {
  auto first = Take(1, 60);
  const absl::Status refused = Refused(1, 41);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(ErrorReasonOf(refused), "LIMIT_REACHED");
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  auto second = Take(1, 40), other = Take(2, 100);
  first.reset();  // was read
  auto third = Take(1, 60);
  EXPECT_EQ(answers_->bytes(), 200);
}

TEST_F(UnreadAnswersTest, AllOfThemGetSoMuchAndNoMore) {
  auto first = Take(1, 100), second = Take(2, 100), third = Take(3, 10);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(3, 41)));
  auto fourth = Take(3, 40);
}

TEST_F(UnreadAnswersTest, OneAnswerMayBeLargerThanAConnectionsShare) {
  auto large = Take(1, 240);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(1, 1)));
}

// However many connections it makes: each of them may have one that has nothing waiting.
TEST_F(UnreadAnswersTest, AProcessGetsSoMuchAndNoMore) {
  auto first = Take(1, 80, "p"), second = Take(2, 60, "p");
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(3, 11, "p")));
  auto third = Take(3, 10, "p"), other = Take(4, 60, "q");
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(5, 1, "p")));
  first.reset();  // was read
  auto fourth = Take(5, 40, "p");
  EXPECT_EQ(answers_->bytes(), 170);
}

// What others leave unread does not hurt it: it would starve otherwise, though it reads all.
TEST_F(UnreadAnswersTest, WhoHasNothingWaitingHasPlacesOfItsOwn) {
  auto first = Take(1, 240), second = Take(2, 20);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(2, 1)));
  auto third = Take(3, 240);
  second.reset();  // was read
  second = Take(2, 20);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(4, 1))) << "there is an end to it";
  auto none = Take(4, 0);
  third.reset();
  auto fourth = Take(4, 240);
}

TEST_F(UnreadAnswersTest, AnswersOfNextToNothingAreNotCounted) {
  auto full = Take(1, 240), none = Take(1, 0), also_none = Take(2, 0), another = Take(2, 0);
  also_none.reset();
  another->SetReady();
  auto first = Take(2, 20);
  EXPECT_EQ(answers_->bytes(), 260);
}

TEST_F(UnreadAnswersTest, WhoLeavesMuchForLongIsDeaf) {
  auto computed_for_long = Take(1, 10), unread = Take(2, 20), read = Take(3, 10),
       read_later = Take(3, 10), small = Take(4, 9), large = Take(4, 50);
  small->SetReady();
  unread->SetReady();
  read->SetReady();
  clock_.Advance(kUnreadMax / 2);
  read.reset();
  read_later->SetReady();
  large->SetReady();
  clock_.Advance(kUnreadMax / 2);
  const std::vector<UnreadAnswers::Deaf> deaf = answers_->FindDeaf();
  ASSERT_THAT(deaf, SizeIs(1));
  EXPECT_EQ(deaf[0].connection, 2);
  EXPECT_EQ(deaf[0].session_id, "s");
  EXPECT_EQ(deaf[0].bytes, 20);
  EXPECT_THAT(answers_->FindDeaf(), IsEmpty()) << "told once";
  clock_.Advance(kUnreadMax / 2);
  EXPECT_THAT(answers_->FindDeaf(), SizeIs(2)) << "the others have stopped to read meanwhile";
}

// On another call of the connection, say.
TEST_F(UnreadAnswersTest, WhoReadsSomethingElseIsDeafAllTheSame) {
  auto unread = Take(1, 20), more = Take(1, 20);
  unread->SetReady();
  more->SetReady();
  for (int i = 0; i < 4; ++i) {
    auto read = Take(1, 20);
    read->SetReady();
    clock_.Advance(kUnreadMax / 4);
  }
  auto fresh = Take(1, 20);
  fresh->SetReady();
  const std::vector<UnreadAnswers::Deaf> deaf = answers_->FindDeaf();
  ASSERT_THAT(deaf, SizeIs(1));
  EXPECT_EQ(deaf[0].bytes, 40);
  more.reset();
  EXPECT_THAT(answers_->FindDeaf(), IsEmpty()) << "told once";
}

TEST_F(UnreadAnswersTest, NothingIsLeft) {
  Take(1, 100)->SetReady();
  EXPECT_EQ(answers_->bytes(), 0);
  clock_.Advance(2 * kUnreadMax);
  EXPECT_THAT(answers_->FindDeaf(), IsEmpty());
}

}  // namespace
}  // namespace kvtier
