// A client that asks for steps and never reads their answers, against a whole server.
#include <atomic>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/service_fixture.h"
#include "server/service/unread_answers.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

class UnreadAnswersServerTest : public ServiceFixture {
 protected:
  UnreadAnswersServerTest() {
    manual_clock_ = std::make_unique<ManualClock>(absl::FromUnixSeconds(1'000'000'000));
  }

  // A step of as many rows as may be, for nobody.
  v1::RunStepsRequest LargeStep(const ClientSession& session) {
    v1::RunStepsRequest step;
    *step.mutable_swap_in() = InlineStep(session, {});
    step.mutable_swap_in()->mutable_inline_()->clear_rows();
    for (int i = 0; i < 1024; ++i) step.mutable_swap_in()->mutable_inline_()->add_rows();
    return step;
  }
};

TEST_F(UnreadAnswersServerTest, ItsSessionEndsWithTheReasonAndThenItsConnection) {
  auto deaf = std::make_unique<ClientSession>(stub(), "deaf");
  ClientSession good(stub(), "good");
  Attach(*deaf);
  Attach(good);
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  std::atomic<bool> ended = false;
  // Until it is held back, and then until the connection ends.
  std::thread writer([&] {
    const v1::RunStepsRequest step = LargeStep(*deaf);
    while (steps->Write(step)) {
    }
    ended = true;
  });
  v1::SessionEvent event;
  std::thread reader([&] { event = deaf->Next(); });
  WaitUntil([&] {
    manual_clock_->Advance(absl::Seconds(1));
    return Stats().sessions() == 1;
  });
  reader.join();
  EXPECT_THAT(event.revoked().message(), HasSubstr("not read for 30s"));
  WaitUntil([&] {
    manual_clock_->Advance(absl::Seconds(1));
    return ended.load();
  });
  writer.join();
  EXPECT_EQ(steps->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // Others, on other connections, go on.
  Admit(good, "r");
}

TEST_F(UnreadAnswersServerTest, WhoReadsIsNeverHeldBack) {
  ClientSession session(stub(), "good");
  Attach(session);
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  constexpr int kSteps = 40;  // far more than have a place at a time
  std::thread writer([&] {
    const v1::RunStepsRequest step = LargeStep(session);
    for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(steps->Write(step));
    EXPECT_TRUE(steps->WritesDone());
  });
  v1::RunStepsResponse response;
  int answers = 0;
  while (steps->Read(&response)) {
    EXPECT_EQ(response.swap_in().rows_size(), 1024) << response.error().message();
    ++answers;
  }
  writer.join();
  EXPECT_TRUE(steps->Finish().ok());
  EXPECT_EQ(answers, kSteps);
}

}  // namespace
}  // namespace kvtier
