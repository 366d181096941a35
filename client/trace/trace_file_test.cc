#include "client/trace/trace_file.h"

#include <random>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Trace SmallTrace() {
  Trace trace;
  trace.layer_count = 2;
  trace.step_count = 3;
  trace.top_k = 3;
  trace.first_position = 40;
  trace.positions = {40, 0, 7, 41, 40, 1, 42, 2, 3,  //
                     1,  2, 3, 4,  5,  6, 7,  8, 9};
  return trace;
}

// The file of `trace`; empty after a failure.
std::string FileOf(const Trace& trace) {
  absl::StatusOr<std::string> bytes = SerializeTrace(trace);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *std::move(bytes) : std::string();
}

TEST(TraceFile, KeepsWhatItWasGiven) {
  const Trace trace = SmallTrace();
  const std::string bytes = FileOf(trace);
  EXPECT_EQ(bytes.size(), 32u + 6 * 3);  // 3 positions of 6 bits: 18 bits, 3 bytes
  const absl::StatusOr<Trace> read = ParseTrace(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->positions, trace.positions);
  EXPECT_EQ(read->first_position, 40);
  EXPECT_EQ(read->own_position(2), 42);
  EXPECT_THAT(read->positions_of(0, 1), ElementsAre(41, 40, 1));
  EXPECT_THAT(read->positions_of(1, 2), ElementsAre(7, 8, 9));
}

TEST(TraceFile, BitsLieLeastSignificantFirst) {
  Trace trace;
  trace.layer_count = trace.step_count = 1;
  trace.top_k = 2;
  trace.first_position = 5;
  trace.positions = {5, 3};  // 3 bits each: 101, 011
  const std::string bytes = FileOf(trace);
  ASSERT_EQ(bytes.size(), 33u);
  EXPECT_EQ(bytes.back(), 0b011101);
}

TEST(TraceFile, AnyWidthAndLength) {
  std::mt19937 random(7);
  for (int bits = 1; bits <= 30; ++bits) {
    for (const int32_t top_k : {0, 1, 7, 8, 33}) {
      Trace trace;
      trace.layer_count = trace.step_count = 2;
      trace.top_k = top_k;
      trace.first_position = (1 << bits) - 1;
      for (int i = 0; i < 4 * top_k; ++i) {
        trace.positions.push_back(static_cast<int32_t>(random() % (1u << bits)));
      }
      const absl::StatusOr<Trace> read = ParseTrace(FileOf(trace));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->positions, trace.positions);
    }
  }
}

TEST(TraceFile, EveryTruncationIsRefused) {
  const std::string bytes = FileOf(SmallTrace());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ParseTrace(bytes.substr(0, size)).status().code(), absl::StatusCode::kInvalidArgument)
        << size;
  }
  EXPECT_FALSE(ParseTrace(bytes + "x").ok());
}

TEST(TraceFile, HeadersThatLieAreRefused) {
  const std::string bytes = FileOf(SmallTrace());
  for (size_t offset = 0; offset < 32; ++offset) {
    for (const int value : {0x00, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[offset] = static_cast<char>(value);
      if (changed == bytes) continue;
      const absl::StatusOr<Trace> read = ParseTrace(changed);
      // What still parses (a later first position) must still be a trace.
      if (read.ok()) {
        EXPECT_TRUE(SerializeTrace(*read).ok()) << offset;
      }
    }
  }
  std::string huge = bytes;
  for (size_t offset = 12; offset < 32; ++offset) huge[offset] = '\xff';
  EXPECT_FALSE(ParseTrace(huge).ok());
}

// A header is all that a file without positions has: it must not cost more than that to read.
TEST(TraceFile, StepsWithoutPositionsAreBounded) {
  Trace trace;
  trace.layer_count = trace.step_count = 64;
  std::string bytes = FileOf(trace);
  EXPECT_TRUE(ParseTrace(bytes).ok());
  bytes[14] = '\x7f';  // the third byte of the number of layers
  EXPECT_THAT(std::string(ParseTrace(bytes).status().message()), HasSubstr("without a position"));
  trace.layer_count = trace.step_count = 1 << 30;
  EXPECT_EQ(SerializeTrace(trace).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TraceFile, PositionsOfTheFutureAreRefused) {
  Trace trace = SmallTrace();
  trace.positions[4] = 42;  // step 1 decodes position 41
  const absl::StatusOr<std::string> bytes = SerializeTrace(trace);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("step 1 names position 42"));

  std::string changed = FileOf(SmallTrace());
  changed[28] = 39;  // first position
  EXPECT_THAT(std::string(ParseTrace(changed).status().message()),
              HasSubstr("layer 0, step 0 names position 40"));
}

TEST(TraceFile, SizesThatDoNotFitAreRefused) {
  Trace trace = SmallTrace();
  trace.positions.pop_back();
  EXPECT_EQ(SerializeTrace(trace).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TraceFile, MissingFileIsNamed) {
  const absl::StatusOr<Trace> trace = ReadTrace("/nowhere/at.all");
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("/nowhere/at.all"));
}

}  // namespace
}  // namespace kvtier::client
