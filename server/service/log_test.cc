#include "server/service/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/time/time.h"
#include "server/core/shared_memory.h"

namespace kvtier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
  }

  std::string Written() {
    char bytes[65536];
    const ssize_t size = read(read_.get(), bytes, sizeof(bytes));
    return std::string(bytes, size < 0 ? 0 : static_cast<size_t>(size));
  }

  UniqueFd read_, write_;
  ManualClock clock_{absl::FromUnixMillis(1769860800123)};
};

TEST_F(LogTest, WritesOneLineAnEvent) {
  Log(&clock_, write_.get()).Event("started", {{"pid", 17}, {"socket", "/run/x.sock"}});
  EXPECT_EQ(Written(),
            "2026-01-31T12:00:00.123Z level=info event=started pid=17 socket=/run/x.sock\n");
}

TEST_F(LogTest, QuotesWhatWouldBreakALine) {
  Log(&clock_, write_.get())
      .Event("x", {{"a", "two words"},
                   {"b", std::string("\"\n\xff")},
                   {"c", ""},
                   {"d", "k=v"},
                   {"e", "it's \\'"}});
  EXPECT_THAT(Written(), EndsWith(" a=\"two words\" b=\"\\\"\\n\\xff\" c=\"\" d=\"k=v\""
                                  " e=\"it's \\\\'\"\n"));
}

TEST_F(LogTest, CutsLongValues) {
  Log(&clock_, write_.get()).Event("x", {{"a", std::string(3000, 'v')}});
  EXPECT_THAT(Written(), EndsWith("v...\n"));
}

TEST_F(LogTest, WritesJson) {
  Log log(&clock_, write_.get());
  log.SetFormat(LogFormat::kJson);
  log.Event(LogLevel::kWarning, "x",
            {{"pid", 17}, {"text", "17"}, {"odd", std::string("\"\\\n\xff\x7f")}});
  EXPECT_EQ(Written(),
            "{\"time\":\"2026-01-31T12:00:00.123Z\",\"level\":\"warning\",\"event\":\"x\","
            "\"pid\":17,\"text\":\"17\",\"odd\":\"\\\"\\\\\\u000a\\u00ff\\u007f\"}\n");
}

TEST_F(LogTest, LeavesOutWhatIsBelowItsLevel) {
  Log log(&clock_, write_.get());
  log.Event(LogLevel::kDebug, "debug");
  log.Event(LogLevel::kInfo, "info");
  log.SetLevel(LogLevel::kWarning);
  log.Event("quiet");
  log.Event(LogLevel::kError, "error");
  const std::string written = Written();
  EXPECT_THAT(written, Not(HasSubstr("debug")));
  EXPECT_THAT(written, HasSubstr("event=info"));
  EXPECT_THAT(written, Not(HasSubstr("quiet")));
  EXPECT_THAT(written, HasSubstr("level=error event=error"));
}

TEST_F(LogTest, AFloodIsCountedInsteadOfWritten) {
  const Log log(&clock_, write_.get());
  for (int i = 0; i < 60; ++i) log.Event("x");
  std::string written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 50);
  EXPECT_EQ(log.suppressed_lines(), 10);
  // Each event has its own allowance, and errors need none.
  log.Event("y");
  for (int i = 0; i < 60; ++i) log.Event(LogLevel::kError, "x");
  written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 61);
  clock_.Advance(absl::Milliseconds(100));
  log.Event("x");
  EXPECT_THAT(Written(), EndsWith(" event=x suppressed=10\n"));
  log.Event("x");
  EXPECT_EQ(log.suppressed_lines(), 11);
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 60; ++i) log.Event("x");
  written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 50);
}

TEST_F(LogTest, AReaderThatStopsStopsNobody) {
  const Log log(&clock_, write_.get());
  // A pipe holds 64 KiB: most of these find no room.
  for (int i = 0; i < 1000; ++i) log.Event(LogLevel::kError, "x", {{"a", std::string(500, 'v')}});
  EXPECT_THAT(Written(), HasSubstr("event=x"));
}

TEST_F(LogTest, ABrokenDescriptorHarmsNobody) { Log(&clock_, -1).Event("x"); }

}  // namespace
}  // namespace kvtier
