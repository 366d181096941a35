#include "server/session/device_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(10);

class DeviceUseTest : public ::testing::Test {
 protected:
  std::string Still() const { return use_.StandsStill(now_, kPatience); }
  void Pass(int seconds) { now_ += absl::Seconds(seconds); }

  DeviceUse use_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(DeviceUseTest, BytesAreThoseOfTheDevicesStreams) {
  const auto one = use_.Add("GPU-1", "a"), two = use_.Add("GPU-1", "b"),
             other = use_.Add("GPU-2", "a");
  one->AddBytes(5);
  two->AddBytes(7);
  other->AddBytes(100);
  EXPECT_EQ(use_.BytesOf("GPU-1"), 12);
  two->AddBytes(-7);
  two->End();
  EXPECT_EQ(use_.BytesOf("GPU-1"), 5);
  EXPECT_EQ(use_.BytesOf("GPU-3"), 0);
}

TEST_F(DeviceUseTest, ADeviceThatEndsNothingStandsStill) {
  const auto stream = use_.Add("GPU-1", "a"), busy = use_.Add("GPU-1", "b");
  Pass(100);
  EXPECT_THAT(Still(), IsEmpty()) << "it was given nothing";
  stream->Given(now_);
  Pass(10);
  EXPECT_THAT(Still(), IsEmpty());
  Pass(1);
  EXPECT_THAT(Still(), HasSubstr("GPU-1 has ended nothing for more than 10s of what session a"));
  // It goes on: whatever is left may take its time again.
  stream->Given(now_);
  stream->Answered(now_);
  EXPECT_THAT(Still(), IsEmpty());
  Pass(11);
  EXPECT_THAT(Still(), HasSubstr("session a"));
  stream->End();
  EXPECT_THAT(Still(), IsEmpty());
}

TEST_F(DeviceUseTest, WorkThatIsRefusedDoesNotWait) {
  const auto stream = use_.Add("GPU-1", "a");
  stream->Given(now_);
  stream->Refused();
  Pass(100);
  EXPECT_THAT(Still(), IsEmpty());
}

TEST_F(DeviceUseTest, AStreamThatWaitsForItsWorkerIsNoFaultOfTheDevice) {
  const auto stream = use_.Add("GPU-1", "a");
  auto progress = Progress::Create(nullptr);
  ASSERT_TRUE(progress.ok()) << progress.status();
  stream->SetProgress(*progress);
  ASSERT_TRUE((*progress)->Expect(1).ok());
  stream->Given(now_);
  Pass(100);
  EXPECT_THAT(Still(), IsEmpty());
  (*progress)->Release();  // the worker's stream has come
  Pass(1);
  EXPECT_THAT(Still(), IsEmpty()) << "from now on it is the device's turn";
  Pass(10);
  EXPECT_THAT(Still(), HasSubstr("session a"));
}

}  // namespace
}  // namespace kvtier
