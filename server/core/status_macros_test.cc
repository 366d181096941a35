#include "server/core/status_macros.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

absl::Status FailIf(bool fail) {
  return fail ? MakeError(absl::StatusCode::kAborted, "SESSION_CLOSED", "closed")
              : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<int>> Number(bool fail) {
  KVTIER_RETURN_IF_ERROR(FailIf(fail));
  return std::make_unique<int>(7);
}

absl::StatusOr<int> Sum(bool fail_first, bool fail_second) {
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Number(fail_first));
  std::unique_ptr<int> second;
  KVTIER_ASSIGN_OR_RETURN(second, Number(fail_second));
  return *first + *second;
}

TEST(StatusMacrosTest, PassesValuesAndErrorsThrough) {
  EXPECT_EQ(*Sum(false, false), 14);
  for (const auto& result : {Sum(true, false), Sum(false, true)}) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ErrorReasonOf(result.status()), "SESSION_CLOSED");  // the payload stays
  }
}

TEST(StatusMacrosTest, ReturnIfErrorIsOneStatement) {
  const auto function = [](bool skip) -> absl::Status {
    if (skip)
      KVTIER_RETURN_IF_ERROR(absl::OkStatus());
    else
      KVTIER_RETURN_IF_ERROR(FailIf(true));
    return absl::OkStatus();
  };
  EXPECT_TRUE(function(true).ok());
  EXPECT_FALSE(function(false).ok());
}

}  // namespace
}  // namespace kvtier
