#include "proto/support/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/support/wire_limits.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(StatusCodes, AreTheSameNumbersBothWays) {
  for (int number = 0; number <= 16; ++number) {
    const grpc::StatusCode code = ToGrpcCode(static_cast<absl::StatusCode>(number));
    EXPECT_EQ(static_cast<int>(code), number);
    EXPECT_EQ(static_cast<int>(ToAbslCode(code)), number);
  }
}

TEST(StatusCodes, NumbersThatAreNoCodeAreUnknown) {
  for (const int number : {-1, 17, 1000}) {
    EXPECT_EQ(ToGrpcCode(static_cast<absl::StatusCode>(number)), grpc::StatusCode::UNKNOWN);
    EXPECT_EQ(ToAbslCode(number), absl::StatusCode::kUnknown);
  }
}

TEST(ToGrpcStatus, CarriesReasonMetadataAndRetryDelay) {
  const grpc::Status wire =
      ToGrpcStatus(absl::ResourceExhaustedError("3 blocks are free; 4 were asked for"),
                   {.reason = "BLOCKS_EXHAUSTED",
                    .metadata = {{"free", "3"}, {"requested", "4"}},
                    .retry_delay = absl::Milliseconds(1500)});
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(wire.error_message(), "3 blocks are free; 4 were asked for");

  const DecodedStatus decoded = FromGrpcStatus(wire);
  EXPECT_EQ(decoded.status, absl::ResourceExhaustedError("3 blocks are free; 4 were asked for"));
  EXPECT_EQ(decoded.details.reason, "BLOCKS_EXHAUSTED");
  EXPECT_THAT(decoded.details.metadata, ElementsAre(Pair("free", "3"), Pair("requested", "4")));
  EXPECT_EQ(decoded.details.retry_delay, absl::Milliseconds(1500));
}

TEST(ToGrpcStatus, WritesWhatOtherLibrariesRead) {
  const grpc::Status wire = ToGrpcStatus(absl::NotFoundError("no such ticket"),
                                         {.reason = "TICKET_UNKNOWN", .metadata = {}});
  google::rpc::Status status;
  ASSERT_TRUE(status.ParseFromString(wire.error_details()));
  EXPECT_EQ(status.code(), 5);
  EXPECT_EQ(status.message(), "no such ticket");
  ASSERT_EQ(status.details_size(), 1);
  EXPECT_EQ(status.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(status.details(0).UnpackTo(&info));
  EXPECT_EQ(info.domain(), "kvtier.v1");
  EXPECT_EQ(info.reason(), "TICKET_UNKNOWN");
}

TEST(ToGrpcStatus, OkHasNoDetails) {
  const grpc::Status wire = ToGrpcStatus(absl::OkStatus(), {.reason = "INTERNAL"});
  EXPECT_TRUE(wire.ok());
  EXPECT_EQ(wire.error_details(), "");
}

TEST(ToGrpcStatus, WithoutAReasonHasNoDetails) {
  EXPECT_EQ(ToGrpcStatus(absl::CancelledError("gone"), {}).error_details(), "");
}

TEST(ToGrpcStatus, OddBytesDoNotBreakTheMessage) {
  const grpc::Status wire =
      ToGrpcStatus(absl::InvalidArgumentError("bad \xff name"),
                   {.reason = "FIELD_INVALID", .metadata = {{"value", "a\xc0\xaf\x01\n\u00e9"}}});
  EXPECT_EQ(wire.error_message(), "bad ? name");
  EXPECT_THAT(FromGrpcStatus(wire).details.metadata, ElementsAre(Pair("value", "a??\x01\n\u00e9")));
}

TEST(ToGrpcStatus, StaysShortEnoughForATrailer) {
  ErrorDetails details{.reason = "FIELD_INVALID"};
  for (int i = 0; i < 100; ++i) details.metadata[absl::StrCat(i)] = std::string(100000, 'v');
  std::string text(1 << 20, 'x');
  // A character across the cut.
  for (size_t i = 1; i + 2 < text.size(); i += 2) text.replace(i, 2, "\u00e9");
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(text), details);
  EXPECT_LE(3 * wire.error_message().size() + wire.error_details().size() * 4 / 3,
            wire::kTrailerBytesMax);
  EXPECT_LE(wire.error_message().size(), wire::kErrorMessageBytesMax);
  EXPECT_THAT(wire.error_message(), EndsWith("\u00e9..."));
  DecodedStatus decoded = FromGrpcStatus(wire);
  EXPECT_EQ(decoded.details.reason, "FIELD_INVALID");
  EXPECT_GE(decoded.details.metadata.size(), 4);
  EXPECT_EQ(decoded.details.metadata["0"], std::string(253, 'v') + "...");
}

TEST(FromGrpcStatus, SurvivesForeignAndBrokenDetails) {
  google::rpc::ErrorInfo foreign;
  foreign.set_reason("SOMETHING");
  foreign.set_domain("example.com");
  google::rpc::Status status;
  status.add_details()->PackFrom(foreign);
  EXPECT_EQ(
      FromGrpcStatus({grpc::StatusCode::ABORTED, "x", status.SerializeAsString()}).details.reason,
      "");
  const DecodedStatus broken =
      FromGrpcStatus({grpc::StatusCode::ABORTED, "x", "\xff\xff\xff\xff garbage"});
  EXPECT_EQ(broken.status, absl::AbortedError("x"));
  EXPECT_THAT(broken.details.metadata, IsEmpty());
  EXPECT_FALSE(broken.details.retry_delay.has_value());
}

TEST(ToUtf8, KeepsValidSequencesAndReplacesTheRest) {
  EXPECT_EQ(ToUtf8("a\u00e9\u20ac\U0001f600"), "a\u00e9\u20ac\U0001f600");
  EXPECT_EQ(ToUtf8("\xe2\x82"), "??");            // cut off
  EXPECT_EQ(ToUtf8("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(ToUtf8("\xf4\x90\x80\x80"), "????");  // past U+10FFFF
  EXPECT_EQ(ToUtf8("\xe0\x80\x80"), "???");       // overlong
  EXPECT_EQ(ToUtf8(std::string("\0b", 2)), std::string("\0b", 2));
}

}  // namespace
}  // namespace kvtier
