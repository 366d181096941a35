// Every call of the operating system that the host pool makes fails once: pools in memory, pools
// in a folder, and what a daemon that starts again takes over.

#include <errno.h>
#include <sys/prctl.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/host_pool/pool_folder.h"
#include "tests/faults/baseline.h"
#include "tests/faults/system_calls.h"

namespace kvtier::faults {
namespace {

constexpr int64_t kPiece = int64_t{2} << 20;
constexpr int64_t kPoolBytes = 4 * kPiece;
constexpr int64_t kAttemptsMax = 1000;

CacheLayout Layout() {
  CacheLayout layout;
  layout.block_size = 4;
  layout.block_count = 8;
  layout.max_requests = 2;
  layout.max_blocks_per_request = 8;
  layout.step_rows = 2;
  layout.dtype_tag = "bytes";
  layout.groups = {{.layers = {{.value_bytes = 64, .row_stride = 64}}, .top_k = 4, .hot_size = 8}};
  return layout;
}

// Hints, what only says more about an error, and what is done in another way then: without them all
// goes on.
bool IsTolerated(SystemCall call) {
  return call == SystemCall::kMadvise || call == SystemCall::kMincore;
}

class PoolFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/kvtier-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    parent_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  }

  HostPoolOptions Options(bool has_folder) const {
    HostPoolOptions options = {.size_bytes = kPoolBytes, .chunk_bytes = kPiece};
    if (has_folder) options.folder = parent_ + "/pool";
    return options;
  }
  // A pool that is ready, with a part whose bytes are zero.
  absl::Status UsePool(bool has_folder) {
    auto pool = HostPool::Create(Options(has_folder), backend_.get());
    if (!pool.ok()) return pool.status();
    (*pool)->Start([](int64_t, int64_t) {});
    if (absl::Status ready = (*pool)->WaitReady(absl::InfiniteFuture()); !ready.ok()) return ready;
    auto part = (*pool)->Carve(kPiece);
    if (!part.ok()) return part.status();
    for (int64_t i = 0; i < kPiece; i += 4096) EXPECT_EQ(part->data()[i], 0);
    part->data()[0] = 1;
    return absl::OkStatus();
  }
  // What a daemon does that makes a cache, fills it and is killed.
  absl::Status LeaveCache(const std::string& cache, uint8_t salt) {
    auto pool = HostPool::Create(Options(true), backend_.get());
    if (!pool.ok()) return pool.status();
    (*pool)->Start([](int64_t, int64_t) {});
    if (absl::Status ready = (*pool)->WaitReady(absl::InfiniteFuture()); !ready.ok()) return ready;
    std::vector<PoolPart> taken;
    for (const CacheFile& other : (*pool)->folder()->TakeKept()) {
      taken.push_back(
          *(*pool)->Adopt(other.manifest().part_offset_bytes, other.manifest().part_bytes));
    }
    auto part = (*pool)->Carve(kPiece);
    if (!part.ok()) return part.status();
    auto file = (*pool)->folder()->NewCacheFile({.cache = cache,
                                                 .layout = Layout(),
                                                 .part_offset_bytes = part->offset_bytes(),
                                                 .part_bytes = part->size_bytes()});
    if (!file.ok()) return file.status();
    std::memset(part->data(), salt, kPiece);
    if (absl::Status committed = file->Commit(); !committed.ok()) {
      file->Remove();
      return committed;
    }
    return absl::OkStatus();
  }
  // Caches and the byte that fills each, as the next daemon finds them.
  absl::StatusOr<std::set<std::pair<std::string, int>>> TakeOver() {
    auto pool = HostPool::Create(Options(true), backend_.get());
    if (!pool.ok()) return pool.status();
    std::set<std::pair<std::string, int>> found;
    for (CacheFile& file : (*pool)->folder()->TakeKept()) {
      auto part = (*pool)->Adopt(file.manifest().part_offset_bytes, file.manifest().part_bytes);
      EXPECT_TRUE(part.ok()) << part.status();
      if (!part.ok()) continue;
      found.emplace(file.manifest().cache, part->data()[kPiece - 1]);
    }
    return found;
  }

  std::string parent_;
  std::unique_ptr<DeviceBackend> backend_ = *MakeCpuBackend({});
};

TEST_F(PoolFaultTest, APoolIsMadeWholeOrNotAtAll) {
  for (const bool has_folder : {false, true}) {
    int64_t refused = 0;
    const Baseline before = Baseline::Now();
    const int64_t failed =
        FailEachSystemCall(AllSystemCalls(), kAttemptsMax, [&](SystemCallFault& fault) {
          const absl::Status status = UsePool(has_folder);
          fault.Cancel();
          SCOPED_TRACE(fault.ToString());
          EXPECT_EQ(Difference(before, Baseline::Now()), "");
          if (!fault.hit().has_value() || status.ok()) {
            EXPECT_TRUE(status.ok()) << status;
            EXPECT_TRUE(!fault.hit().has_value() || IsTolerated(*fault.hit()))
                << "it went on in spite of it";
            return;
          }
          ++refused;
          EXPECT_NE(ErrorReasonOf(status), "") << status;
          // And it works the next time.
          const absl::Status again = UsePool(has_folder);
          EXPECT_TRUE(again.ok()) << again;
          EXPECT_EQ(Difference(before, Baseline::Now()), "");
        });
    EXPECT_GT(failed, has_folder ? 25 : 8);
    EXPECT_GT(refused, has_folder ? 15 : 4);
    RecordProperty(has_folder ? "folder_faults" : "memory_faults", static_cast<int>(failed));
  }
}

TEST_F(PoolFaultTest, SignalsInterruptNothing) {
  for (const bool has_folder : {false, true}) {
    const int64_t failed = FailEachSystemCall(
        {SystemCall::kFallocate, SystemCall::kMadvise}, kAttemptsMax,
        [&](SystemCallFault& fault) {
          const absl::Status status = UsePool(has_folder);
          EXPECT_TRUE(status.ok()) << status << " after " << fault.ToString();
        },
        EINTR);
    EXPECT_GT(failed, 2);
  }
}

// Nobody's rows get into a core: where the system does not leave the pool out, there is none.
TEST_F(PoolFaultTest, APoolThatCoresWouldHoldTakesAllCores) {
  for (const bool has_folder : {false, true}) {
    int64_t without_cores = 0;
    FailEachSystemCall({SystemCall::kMadvise}, kAttemptsMax, [&](SystemCallFault& fault) {
      prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
      const absl::Status status = UsePool(has_folder);
      if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return;
      ++without_cores;
      EXPECT_TRUE(status.ok()) << status << " after " << fault.ToString();
    });
    EXPECT_EQ(without_cores, 1);
  }
}

// A daemon that starts while the system is short of something must not lose the rows that the last
// one left: it refuses to start, and the next one has them.
TEST_F(PoolFaultTest, WhatIsKeptSurvivesAStartThatFails) {
  ASSERT_TRUE(LeaveCache("one", 1).ok());
  ASSERT_TRUE(LeaveCache("two", 2).ok());
  const std::set<std::pair<std::string, int>> both = {{"one", 1}, {"two", 2}};
  const Baseline before = Baseline::Now();
  int64_t refused = 0;
  const int64_t failed =
      FailEachSystemCall(AllSystemCalls(), kAttemptsMax, [&](SystemCallFault& fault) {
        const auto found = TakeOver();
        fault.Cancel();
        SCOPED_TRACE(fault.ToString());
        EXPECT_EQ(Difference(before, Baseline::Now()), "");
        if (found.ok()) {
          EXPECT_EQ(*found, both);
        } else {
          ++refused;
          EXPECT_NE(ErrorReasonOf(found.status()), "") << found.status();
        }
        const auto again = TakeOver();
        EXPECT_TRUE(again.ok()) << again.status();
        EXPECT_EQ(again.value_or(std::set<std::pair<std::string, int>>()), both)
            << "it has lost rows";
      });
  EXPECT_GT(failed, 15);
  EXPECT_GT(refused, 10);
  RecordProperty("faults", static_cast<int>(failed));
}

}  // namespace
}  // namespace kvtier::faults
