#include "server/device/make_backend.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

TEST(MakeBackendTest, Cpu) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("cpu", 2);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->backend->Devices()[0].kind, BackendKind::kCpu);
  EXPECT_THAT(chosen->note, HasSubstr("cpu"));
}

// D22: a machine without a GPU serves, and says why in one line.
TEST(MakeBackendTest, D22_AutoAlwaysFindsOne) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("auto", 1);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_FALSE(chosen->backend->Devices().empty());
  EXPECT_FALSE(chosen->note.empty());
  EXPECT_EQ(chosen->note.find('\n'), std::string::npos);
}

TEST(MakeBackendTest, D22_CudaIsThereOrAClearError) {
  const absl::StatusOr<ChosenBackend> chosen = MakeBackend("cuda", 1);
  if (chosen.ok()) {
    EXPECT_EQ(chosen->backend->Devices()[0].kind, BackendKind::kCuda);
    return;
  }
  EXPECT_THAT(ErrorReasonOf(chosen.status()),
              ::testing::AnyOf("NOT_IMPLEMENTED", "DEVICE_UNKNOWN"));
  EXPECT_EQ(chosen.status().message().find('\n'), absl::string_view::npos);
}

TEST(MakeBackendTest, OtherNamesAndNumbersAreInvalid) {
  for (const char* name : {"", "CPU", "gpu", "auto "}) {
    const absl::Status status = MakeBackend(name, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(ErrorMetadataOf(status).at("field"), "backend");
  }
  EXPECT_EQ(MakeBackend("cpu", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
