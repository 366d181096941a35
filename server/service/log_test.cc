#include "server/service/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/time/time.h"
#include "server/core/shared_memory.h"

namespace kvtier {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
  }

  std::string Written() {
    char bytes[4096];
    const ssize_t size = read(read_.get(), bytes, sizeof(bytes));
    return std::string(bytes, size < 0 ? 0 : static_cast<size_t>(size));
  }

  UniqueFd read_, write_;
  ManualClock clock_{absl::FromUnixMillis(1769860800123)};
};

TEST_F(LogTest, WritesOneLineAnEvent) {
  Log(&clock_, write_.get()).Event("started", {{"pid", 17}, {"socket", "/run/x.sock"}});
  EXPECT_EQ(Written(), "2026-01-31T12:00:00.123Z event=started pid=17 socket=/run/x.sock\n");
}

TEST_F(LogTest, QuotesWhatWouldBreakALine) {
  Log(&clock_, write_.get())
      .Event("x", {{"a", "two words"}, {"b", std::string("\"\n\xff")}, {"c", ""}, {"d", "k=v"}});
  EXPECT_THAT(Written(), EndsWith(" a=\"two words\" b=\"\\\"\\n\\xff\" c=\"\" d=\"k=v\"\n"));
}

TEST_F(LogTest, CutsLongValues) {
  Log(&clock_, write_.get()).Event("x", {{"a", std::string(3000, 'v')}});
  EXPECT_THAT(Written(), EndsWith("v...\n"));
}

TEST_F(LogTest, AReaderThatStopsStopsNobody) {
  const Log log(&clock_, write_.get());
  // A pipe holds 64 KiB: most of these find no room.
  for (int i = 0; i < 1000; ++i) log.Event("x", {{"a", std::string(500, 'v')}});
  EXPECT_THAT(Written(), ::testing::HasSubstr("event=x"));
}

TEST_F(LogTest, ABrokenDescriptorHarmsNobody) { Log(&clock_, -1).Event("x"); }

}  // namespace
}  // namespace kvtier
