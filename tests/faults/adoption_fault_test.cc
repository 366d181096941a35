// Every call of the device and of the operating system fails once while a daemon takes over what
// the last one left: the start is refused, nothing is dropped, and the next one has all of it.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"
#include "server/session/node_fixture.h"
#include "tests/faults/system_calls.h"

namespace kvtier::faults {
namespace {

constexpr Peer kPeer = {.pid = 1, .uid = 1000};
constexpr int32_t kBlocks = 3;

class AdoptionFaultTest : public ::testing::Test {
 protected:
  AdoptionFaultTest() {
    char name[] = "/dev/shm/kvtier-test-XXXXXX";
    parent_ = mkdtemp(name);
    EXPECT_TRUE(Run([this](Node& node) { Leave(node, "one"); }).ok());
    EXPECT_TRUE(Run([this](Node& node) { Leave(node, "two"); }).ok());
  }
  ~AdoptionFaultTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
  }

  // One run of a daemon without a server, in the order of main().
  absl::Status Run(const std::function<void(Node&)>& use) {
    auto pool = HostPool::Create({.size_bytes = int64_t{8} << 20,
                                  .huge_pages = HugePages::kNever,
                                  .folder = parent_ + "/pool"},
                                 backend_.get());
    if (!pool.ok()) return pool.status();
    EXPECT_EQ((*pool)->folder()->dropped(), std::vector<std::string>());
    Node node({.version = "test"}, &clock_, backend_.get(), pool->get());
    const auto dropped = node.AdoptCaches();
    if (!dropped.ok()) return dropped.status();
    EXPECT_EQ(*dropped, std::vector<std::string>());
    (*pool)->Start([](int64_t, int64_t) {});
    if (absl::Status ready = (*pool)->WaitReady(absl::InfiniteFuture()); !ready.ok()) return ready;
    use(node);
    return absl::OkStatus();
  }
  // A cache with blocks that are held when the daemon stops.
  void Leave(Node& node, const std::string& cache) {
    const absl::Time soon = clock_.Now() + absl::Seconds(30);
    const std::string session = *node.OpenSession("worker", kPeer, nullptr);
    const CacheLayout layout = SmallLayout{.block_count = 8, .block_size = 4}.Make();
    ASSERT_TRUE(node.AttachCache(session, cache, layout, "", soon).ok());
    ASSERT_TRUE(node.AdmitRequest(session, cache, "r", 0, soon).ok());
    ASSERT_TRUE(node.AssignBlocks(session, cache, "r", kBlocks, {}, {}, soon).ok());
  }
  void ExpectAllIsThere() {
    const absl::Status status = Run([](Node& node) {
      const auto snapshot = node.Snapshot("");
      ASSERT_EQ(snapshot->caches.size(), 2u);
      for (const CacheSnapshot& cache : snapshot->caches) {
        EXPECT_EQ(cache.blocks_kept, kBlocks) << cache.cache;
      }
    });
    EXPECT_TRUE(status.ok()) << status;
  }

  const SystemClock clock_;
  const std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  const std::unique_ptr<DeviceBackend> backend_ =
      MakeFaultInjectingBackend(*MakeCpuBackend({}), plan_);
  std::string parent_;
};

TEST_F(AdoptionFaultTest, EveryCallOfTheDeviceFailsOnce) {
  ExpectAllIsThere();
  const absl::StatusOr<int64_t> failed = FailEachCall(
      plan_.get(), MakeError(absl::StatusCode::kUnavailable, "DEVICE_ERROR", "injected"), 100, [&] {
        const absl::Status status = Run([](Node&) {});
        plan_->Clear();
        ExpectAllIsThere();
        return status;
      });
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_GE(*failed, 3) << "the rows, and what two caches have beside them";
  RecordProperty("faults", static_cast<int>(*failed));
}

TEST_F(AdoptionFaultTest, EverySystemCallFailsOnce) {
  const int64_t failed = FailEachSystemCall(AllSystemCalls(), 1000, [&](SystemCallFault& fault) {
    const absl::Status status = Run([](Node&) {});
    fault.Cancel();
    SCOPED_TRACE(fault.ToString());
    EXPECT_TRUE(status.ok() || fault.hit().has_value()) << status;
    ExpectAllIsThere();
  });
  EXPECT_GT(failed, 40);
  RecordProperty("faults", static_cast<int>(failed));
}

}  // namespace
}  // namespace kvtier::faults
