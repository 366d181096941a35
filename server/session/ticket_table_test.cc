#include "server/session/ticket_table.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TicketTableTest : public ::testing::Test {
 protected:
  OperationDone Note(std::string name) {
    return [this, name = std::move(name)](const OperationOutcome& outcome) {
      events_.push_back(name + " " + std::to_string(outcome.ticket) +
                        (outcome.status.ok() ? "" : " failed"));
    };
  }
  void Complete(int64_t ticket, const absl::Status& status = absl::OkStatus()) {
    table_.Complete(ticket, status, [this](const absl::Status&) { events_.push_back("done"); });
  }

  TicketTable table_{/*waiters_max=*/3};
  std::vector<std::string> events_;
};

TEST_F(TicketTableTest, CountsFromOneAndTakesBackTheNewest) {
  EXPECT_EQ(table_.Issue(), 1);
  EXPECT_EQ(table_.Issue(), 2);
  table_.Withdraw();
  EXPECT_EQ(table_.Issue(), 2);
  EXPECT_EQ(table_.in_flight(), 2);
  Complete(1);
  EXPECT_EQ(table_.in_flight(), 1);
}

TEST_F(TicketTableTest, WaitersRunAfterTheOperation) {
  for (int i = 0; i < 3; ++i) table_.Issue();
  EXPECT_TRUE(table_.OnTicket(2, Note("a")).ok());
  EXPECT_TRUE(table_.OnTicket(1, Note("b")).ok());
  EXPECT_TRUE(table_.OnTicket(2, Note("c")).ok());
  EXPECT_EQ(ErrorReasonOf(table_.OnTicket(2, Note("d"))), "LIMIT_REACHED");
  EXPECT_THAT(events_, IsEmpty());
  Complete(1);
  EXPECT_THAT(events_, ElementsAre("done", "b 1"));
  Complete(2, absl::InternalError("x"));
  EXPECT_THAT(events_, ElementsAre("done", "b 1", "done", "a 2 failed", "c 2 failed"));
  events_.clear();
  Complete(3);
  EXPECT_TRUE(table_.OnTicket(1, Note("e")).ok());
  EXPECT_TRUE(table_.OnTicket(2, Note("f")).ok());
  EXPECT_THAT(events_, ElementsAre("done", "e 3", "f 3 failed"));
}

TEST_F(TicketTableTest, OldFailuresAreUnknownNotSuccesses) {
  const int64_t kept = TicketTable::kFailuresKept;
  for (int64_t ticket = 1; ticket <= kept + 2; ++ticket) {
    table_.Issue();
    Complete(ticket, absl::InternalError("x"));
  }
  events_.clear();
  EXPECT_EQ(ErrorReasonOf(table_.OnTicket(1, Note("a"))), "TICKET_UNKNOWN");
  EXPECT_EQ(ErrorReasonOf(table_.OnTicket(2, Note("a"))), "TICKET_UNKNOWN");
  EXPECT_TRUE(table_.OnTicket(3, Note("b")).ok());
  EXPECT_THAT(events_, ElementsAre("b " + std::to_string(kept + 2) + " failed"));
}

}  // namespace
}  // namespace kvtier
