#include "server/device/make_backend.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

TEST(MakeBackendTest, Cpu) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("cpu", {.cpu_threads = 2});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->backend->Devices()[0].kind, BackendKind::kCpu);
  EXPECT_THAT(chosen->note, HasSubstr("cpu"));
}

// D22: a machine without a GPU serves, and says why in one line.
TEST(MakeBackendTest, D22_AutoAlwaysFindsOne) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("auto", {});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_FALSE(chosen->backend->Devices().empty());
  EXPECT_FALSE(chosen->note.empty());
  EXPECT_EQ(chosen->note.find('\n'), std::string::npos);
  // Which one that is follows from what asking for a GPU says; so does the reason.
  const absl::Status cuda = MakeBackend("cuda", {}).status();
  const BackendKind kind = chosen->backend->Devices()[0].kind;
  EXPECT_EQ(kind, cuda.ok() ? BackendKind::kCuda : BackendKind::kCpu);
  EXPECT_THAT(chosen->note, HasSubstr(std::string(cuda.message())));
}

TEST(MakeBackendTest, D22_CudaIsThereOrAClearError) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("cuda", {});
  if (chosen.ok()) {
    EXPECT_EQ(chosen->backend->Devices()[0].kind, BackendKind::kCuda);
    return;
  }
  if (absl::IsUnimplemented(chosen.status())) {
    EXPECT_EQ(ErrorReasonOf(chosen.status()), "NOT_IMPLEMENTED");
  } else {
    EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReasonOf(chosen.status()), "DEVICE_UNKNOWN");
    EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("no CUDA device"));
  }
  EXPECT_EQ(chosen.status().message().find('\n'), absl::string_view::npos);
}

TEST(MakeBackendTest, OtherNamesAndNumbersAreInvalid) {
  for (const char* name : {"", "CPU", "gpu", "auto "}) {
    const absl::Status status = MakeBackend(name, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(ErrorMetadataOf(status).at("field"), "backend");
  }
  EXPECT_EQ(MakeBackend("cpu", {.cpu_threads = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
