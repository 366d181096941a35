#include "server/service/wire_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(WireError, CarriesReasonMetadataAndHint) {
  const absl::Status status =
      MakeRetryableError(absl::StatusCode::kUnavailable, "POOL_PINNING", "not yet",
                         absl::Seconds(2), {{"pinned_bytes", "5"}});
  const grpc::Status wire = ToWire(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::UNAVAILABLE);
  const ErrorDetails details = FromGrpcStatus(wire).details;
  EXPECT_EQ(details.reason, "POOL_PINNING");
  EXPECT_THAT(details.metadata, ElementsAre(Pair("pinned_bytes", "5")));
  EXPECT_EQ(details.retry_delay, absl::Seconds(2));
}

TEST(WireError, EveryErrorHasAReason) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "x");
    EXPECT_NE(FromGrpcStatus(ToWire(status)).details.reason, "") << code;
  }
  EXPECT_TRUE(ToWire(absl::OkStatus()).ok());
}

TEST(WireError, AStepSaysTheSameAsACall) {
  const absl::Status status = FieldInvalid("group_index", "7", "0..1");
  const v1::StepError error = ToStepError(status);
  EXPECT_EQ(error.code(), 3);
  EXPECT_EQ(error.message(), ToWire(status).error_message());
  EXPECT_EQ(error.reason(), "FIELD_INVALID");
  EXPECT_EQ(error.metadata().at("field"), "group_index");
  EXPECT_EQ(error.metadata().at("value"), "7");
  EXPECT_EQ(error.metadata().at("limit"), "0..1");
}

}  // namespace
}  // namespace kvtier
