// What a caller's numbers make large is refused before it is allocated: where an allocation fails
// the daemon ends.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/session/node_fixture.h"
#include "tests/faults/allocations.h"

namespace kvtier::faults {
namespace {

constexpr Peer kPeer = {.pid = 1, .uid = 1000};
constexpr size_t kMebibyte = size_t{1} << 20;

// A node on a machine that says how much memory it has.
class LimitsTest : public ::testing::Test {
 protected:
  LimitsTest() {
    char name[] = "/tmp/kvtier-test-XXXXXX";
    root_ = mkdtemp(name);
    std::filesystem::create_directories(root_ + "/proc");
    SetAvailable(1 << 10);
    pool_ = *HostPool::Create(
        {.size_bytes = int64_t{20} << 20, .huge_pages = HugePages::kNever, .system_root = root_},
        backend_.get());
    pool_->Start([](int64_t, int64_t) {});
    EXPECT_TRUE(pool_->WaitReady(absl::InfiniteFuture()).ok());
    node_ = std::make_unique<Node>(NodeOptions{.version = "test"}, &clock_, backend_.get(),
                                   pool_.get());
    session_ = *node_->OpenSession("worker", kPeer, nullptr);
  }
  ~LimitsTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void SetAvailable(int64_t mebibytes) const {
    std::ofstream(root_ + "/proc/meminfo") << "MemAvailable: " << mebibytes * 1024 << " kB\n";
  }
  absl::Status Attach(const CacheLayout& layout) {
    TakeLargestAllocation();
    return node_->AttachCache(session_, "kv", layout, "", clock_.Now() + absl::Seconds(30))
        .status();
  }

  std::string root_;
  const SystemClock clock_;
  const std::unique_ptr<DeviceBackend> backend_ = *MakeCpuBackend({});
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Node> node_;
  std::string session_;
};

// A million blocks of one row of 16 bytes: what the daemon notes of each is more than its row.
TEST_F(LimitsTest, BlocksWhoseBookkeepingHasNoRoom) {
  CacheLayout layout = SmallLayout{.top_k = 1,
                                   .hot_size = 1,
                                   .block_count = 1'000'000,
                                   .max_requests = 1,
                                   .block_size = 1,
                                   .row_bytes = 16}
                           .Make();
  layout.max_blocks_per_request = 1000;
  SetAvailable(8);
  const absl::Status refused = Attach(layout);
  EXPECT_TRUE(IsError(refused, absl::StatusCode::kResourceExhausted, "LIMIT_REACHED"));
  EXPECT_LT(TakeLargestAllocation(), kMebibyte) << "before it was refused";
  EXPECT_EQ(ErrorMetadataOf(refused)["requested_bytes"], "32000000");
  EXPECT_EQ(pool_->stats().used_bytes, 0);
  EXPECT_TRUE(node_->Snapshot("")->caches.empty());
  SetAvailable(64);
  const absl::Status taken = Attach(layout);
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_GT(TakeLargestAllocation(), kMebibyte) << "the test measures nothing";
}

// The largest layouts that the limits let through, on a pool that is too small for them.
TEST_F(LimitsTest, LayoutsAtTheLimits) {
  CacheLayout wide = SmallLayout{.block_count = 1 << 20,
                                 .max_requests = 1,
                                 .block_size = 1024,
                                 .layers = 256,
                                 .row_bytes = 4096}
                         .Make();
  CacheLayout many = SmallLayout{.top_k = 1,
                                 .hot_size = 1,
                                 .block_count = (1 << 30) - 1,
                                 .max_requests = 1,
                                 .block_size = 1,
                                 .row_bytes = 16}
                         .Make();
  CacheLayout requests = SmallLayout{.top_k = 1,
                                     .hot_size = 1,
                                     .block_count = 32000,
                                     .max_requests = 65536 / 128,
                                     .block_size = 64,
                                     .row_bytes = 4096}
                             .Make();
  for (const CacheLayout& layout : {wide, many, requests}) {
    const absl::Status refused = Attach(layout);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(ErrorReasonOf(refused), "");
    EXPECT_LT(TakeLargestAllocation(), kMebibyte);
  }
}

}  // namespace
}  // namespace kvtier::faults
