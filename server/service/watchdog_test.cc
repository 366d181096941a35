#include "server/service/watchdog.h"

#include <gtest/gtest.h>

#include <future>

namespace kvtier {
namespace {

TEST(Watchdog, CallsWhenTheTimeIsUp) {
  std::promise<void> expired;
  auto watchdog = Watchdog::Start(absl::Milliseconds(5), [&] { expired.set_value(); });
  ASSERT_TRUE(watchdog.ok()) << watchdog.status();
  expired.get_future().wait();
}

TEST(Watchdog, IsSilentOnceItIsGone) {
  bool expired = false;
  {
    auto watchdog = Watchdog::Start(absl::Hours(1), [&] { expired = true; });
  }
  EXPECT_FALSE(expired);
}

}  // namespace
}  // namespace kvtier
