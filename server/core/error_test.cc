#include "server/core/error.h"

#include <string>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

TEST(ErrorTest, CarriesCodeReasonMessageAndMetadata) {
  const absl::Status status =
      MakeError(absl::StatusCode::kNotFound, "CACHE_UNKNOWN", "no cache 'kv'", {{"cache", "kv"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no cache 'kv'");
  EXPECT_EQ(ErrorReasonOf(status), "CACHE_UNKNOWN");
  EXPECT_EQ(ErrorMetadataOf(status), (ErrorMetadata{{"cache", "kv"}}));
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
}

TEST(ErrorTest, MetadataKeepsEveryByte) {
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes.push_back(static_cast<char>(i));
  const ErrorMetadata metadata = {{"", "empty key"},           {"empty value", ""},
                                  {"separators", "3:a=b;,\n"}, {"bytes", all_bytes},
                                  {all_bytes, "key"},          {"digits", "12:34:"}};
  const absl::Status status =
      MakeError(absl::StatusCode::kInvalidArgument, "FIELD_INVALID", "x", metadata);
  EXPECT_EQ(ErrorMetadataOf(status), metadata);
}

TEST(ErrorTest, StatusOfOthersHasNothing) {
  const absl::Status status = absl::InternalError("theirs");
  EXPECT_EQ(ErrorReasonOf(status), "");
  EXPECT_TRUE(ErrorMetadataOf(status).empty());
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
  EXPECT_EQ(ErrorReasonOf(absl::OkStatus()), "");
}

TEST(ErrorTest, SurvivesCopies) {
  const absl::Status original =
      MakeError(absl::StatusCode::kAborted, "SESSION_CLOSED", "closed", {{"session_id", "s"}});
  absl::Status copy;
  copy = original;
  EXPECT_EQ(copy, original);
  EXPECT_EQ(ErrorReasonOf(copy), "SESSION_CLOSED");
}

TEST(ErrorTest, RetryDelay) {
  const auto delay_of = [](absl::Duration delay) {
    return RetryDelayOf(
        MakeRetryableError(absl::StatusCode::kUnavailable, "POOL_PINNING", "wait", delay));
  };
  EXPECT_EQ(delay_of(absl::Milliseconds(1500)), absl::Milliseconds(1500));
  EXPECT_EQ(delay_of(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(delay_of(-absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_GT(delay_of(absl::InfiniteDuration()), absl::Hours(24));
}

TEST(ErrorTest, AnErrorIsNeverOk) {
  EXPECT_EQ(MakeError(absl::StatusCode::kOk, "INTERNAL", "x").code(), absl::StatusCode::kInternal);
}

TEST(ErrorTest, DamagedMetadataIsReadAsFarAsItGoes) {
  absl::Status status = absl::InternalError("x");
  for (const char* damaged : {"x", "5:a", "1:a1:b99999999999999999999:c", "-1:a", ":"}) {
    status.SetPayload("kvtier/metadata", absl::Cord(damaged));
    EXPECT_LE(ErrorMetadataOf(status).size(), 1u) << damaged;
  }
}

TEST(ErrorTest, FieldInvalidSaysFieldValueAndLimit) {
  const absl::Status status = FieldInvalid("rows", "0", "1..64", "send at least one");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReasonOf(status), "FIELD_INVALID");
  EXPECT_EQ(status.message(), "rows is 0; it must be 1..64: send at least one");
  EXPECT_EQ(ErrorMetadataOf(status),
            (ErrorMetadata{{"field", "rows"}, {"value", "0"}, {"limit", "1..64"}}));
  EXPECT_EQ(FieldInvalid("rows", "0", "1..64").message(), "rows is 0; it must be 1..64");
}

TEST(ErrorTest, InternalError) {
  EXPECT_EQ(ErrorReasonOf(InternalError("x")), "INTERNAL");
  EXPECT_EQ(InternalError("x").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kvtier
