#include "server/host_pool/host_pool.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/thread.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPiece = 2 * kMiB;

absl::Time Forever() { return absl::InfiniteFuture(); }

class HostPoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostPool> Create(int64_t bytes, HostPoolOptions options = {}) {
    options.size_bytes = bytes;
    options.chunk_bytes = std::min(options.chunk_bytes, kPiece);
    return *HostPool::Create(options, backend_.get());
  }
  std::unique_ptr<HostPool> Ready(int64_t bytes, HostPoolOptions options = {}) {
    auto pool = Create(bytes, std::move(options));
    pool->Start(nullptr);
    EXPECT_TRUE(pool->WaitReady(Forever()).ok());
    return pool;
  }
  int64_t Registered() const {
    return plan_->calls(DeviceOperation::kRegisterHost) -
           plan_->calls(DeviceOperation::kUnregisterHost) - plan_->faults();
  }

  const std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  const std::unique_ptr<DeviceBackend> backend_ =
      MakeFaultInjectingBackend(*MakeCpuBackend({}), plan_);
};

TEST_F(HostPoolTest, BecomesReadyChunkByChunk) {
  auto pool = Create(5 * kPiece - 1);
  EXPECT_EQ(pool->stats().state, HostPool::State::kPinning);
  EXPECT_EQ(pool->stats().total_bytes, 5 * kPiece);
  EXPECT_EQ(pool->stats().page_bytes, 0);
  std::vector<std::pair<int64_t, int64_t>> progress;
  pool->Start([&](int64_t pinned, int64_t total) {
    progress.emplace_back(pinned, total);
    EXPECT_EQ(pool->stats().pinned_bytes, pinned) << "stats can be read meanwhile";
  });
  pool->Start(nullptr);  // nothing
  ASSERT_TRUE(pool->WaitReady(Forever()).ok());
  EXPECT_THAT(progress, ::testing::ElementsAre(
                            std::pair(kPiece, 5 * kPiece), std::pair(2 * kPiece, 5 * kPiece),
                            std::pair(3 * kPiece, 5 * kPiece), std::pair(4 * kPiece, 5 * kPiece),
                            std::pair(5 * kPiece, 5 * kPiece)));
  EXPECT_EQ(plan_->calls(DeviceOperation::kRegisterHost), 5);
  const HostPool::Stats stats = pool->stats();
  EXPECT_EQ(stats.state, HostPool::State::kReady);
  EXPECT_EQ(stats.pinned_bytes, 5 * kPiece);
  EXPECT_EQ(stats.largest_free_bytes, 5 * kPiece);
  EXPECT_THAT(stats.page_bytes, ::testing::AnyOf(kPiece, int64_t{sysconf(_SC_PAGESIZE)}));
  EXPECT_EQ(stats.page_bytes == kPiece, stats.huge_bytes == stats.total_bytes);
  struct stat file = {};
  ASSERT_EQ(fstat(pool->fd().get(), &file), 0);
  EXPECT_EQ(file.st_size, 5 * kPiece);
  EXPECT_EQ(int64_t{file.st_blocks} * 512, 5 * kPiece) << "every page is there";
  pool.reset();
  EXPECT_EQ(Registered(), 0);
}

TEST_F(HostPoolTest, SmallPagesWhenAskedFor) {
  EXPECT_EQ(Ready(2 * kPiece, {.huge_pages = HugePages::kNever})->stats().huge_bytes, 0);
}

TEST_F(HostPoolTest, D21_ChunksOfOneMebibyteAreRefusedAndLargerOnesCover) {
  // Parts and rows cross chunk borders only at 2 MiB boundaries, so that a chunk is never less.
  EXPECT_EQ(
      HostPool::Create({.size_bytes = kPiece, .chunk_bytes = kMiB}, backend_.get()).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      HostPool::Create({.size_bytes = kPiece, .chunk_bytes = 0}, backend_.get()).status().code(),
      absl::StatusCode::kInvalidArgument);
  Ready(4 * kMiB + 16 * 1024);
  EXPECT_EQ(plan_->calls(DeviceOperation::kRegisterHost), 3);
}

TEST_F(HostPoolTest, D21_AZeroOrImpossibleSizeIsInvalid) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    const absl::Status status = HostPool::Create({.size_bytes = bytes}, backend_.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorMetadataOf(status).at("field"), "pool_bytes");
  }
}

TEST_F(HostPoolTest, D21_AFailedChunkUnregistersTheEarlierOnes) {
  plan_->FailNth(DeviceOperation::kRegisterHost, 3,
                 MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                           "cudaErrorMemoryAllocation"));
  auto pool = Create(4 * kPiece);
  std::vector<int64_t> progress;
  pool->Start([&](int64_t pinned, int64_t) { progress.push_back(pinned); });
  const absl::Status status = pool->WaitReady(Forever());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  for (const char* part :
       {"host memory", "chunk 2", "2097152", "8388608", "cudaErrorMemoryAllocation"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(progress, ::testing::ElementsAre(kPiece, 2 * kPiece));
  EXPECT_EQ(Registered(), 0) << "while the pool still lives";
  EXPECT_EQ(pool->stats().state, HostPool::State::kFailed);
  EXPECT_EQ(pool->stats().pinned_bytes, 0);
  EXPECT_EQ(pool->Carve(kPiece).status(), status);
  struct stat file = {};
  ASSERT_EQ(fstat(pool->fd().get(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0) << "and the pages are the system's again";

  Ready(4 * kPiece);  // the failure left nothing behind
}

TEST_F(HostPoolTest, D21_EveryChunkMayFail) {
  const auto failed = FailEachCall(
      plan_.get(), MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED", "no"), 10,
      [&]() -> absl::Status {
        auto pool = Create(3 * kPiece);
        pool->Start(nullptr);
        return pool->WaitReady(Forever());
      });
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(*failed, 3);
}

TEST_F(HostPoolTest, D18_CancelStopsAtTheNextChunk) {
  auto pool = Create(100 * kPiece);
  auto second = plan_->DelayNth(DeviceOperation::kRegisterHost, 2);
  pool->Start(nullptr);
  second->WaitUntilReached();  // the driver is busy with chunk 2
  pool->Cancel();              // returns although it is
  EXPECT_EQ(pool->stats().state, HostPool::State::kPinning);
  second->Release();
  const absl::Status status = pool->WaitReady(Forever());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(status), "DRAINING");
  EXPECT_EQ(plan_->calls(DeviceOperation::kRegisterHost), 2) << "of 100";
  EXPECT_EQ(Registered(), 0);
}

TEST_F(HostPoolTest, D18_CancelFromTheProgressCallback) {
  auto pool = Create(100 * kPiece);
  pool->Start([&](int64_t, int64_t) { pool->Cancel(); });
  EXPECT_EQ(ErrorReasonOf(pool->WaitReady(Forever())), "DRAINING");
  EXPECT_EQ(plan_->calls(DeviceOperation::kRegisterHost), 1);
}

TEST_F(HostPoolTest, D18_CancelBeforeStartAndAfterReady) {
  auto never = Create(kPiece);
  never->Cancel();
  never->Start(nullptr);
  EXPECT_EQ(ErrorReasonOf(never->WaitReady(Forever())), "DRAINING");
  EXPECT_EQ(plan_->calls(DeviceOperation::kRegisterHost), 0);

  auto ready = Ready(kPiece);
  ready->Cancel();
  EXPECT_TRUE(ready->WaitReady(Forever()).ok()) << "what is pinned stays";
  EXPECT_TRUE(ready->Carve(1).ok());
}

TEST_F(HostPoolTest, DestructionWhilePinningCancels) {
  auto pool = Create(100 * kPiece);
  auto first = plan_->DelayNth(DeviceOperation::kRegisterHost, 1);
  pool->Start(nullptr);
  first->WaitUntilReached();
  Thread destroyer = *Thread::Start("destroy", [&] { pool.reset(); });
  first->Release();
  destroyer.Join();
  EXPECT_EQ(Registered(), 0);
}

TEST_F(HostPoolTest, NotReadyYet) {
  auto pool = Create(2 * kPiece);
  auto second = plan_->DelayNth(DeviceOperation::kRegisterHost, 2);
  pool->Start(nullptr);
  second->WaitUntilReached();
  EXPECT_EQ(pool->stats().pinned_bytes, kPiece);
  const absl::Status status = pool->Carve(kPiece).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(status), "POOL_PINNING");
  EXPECT_EQ(ErrorMetadataOf(status), (ErrorMetadata{{"pinned_bytes", std::to_string(kPiece)},
                                                    {"limit_bytes", std::to_string(2 * kPiece)}}));
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_EQ(ErrorReasonOf(pool->WaitReady(absl::InfinitePast())), "DEADLINE");
  EXPECT_EQ(pool->stats().largest_free_bytes, 0);
  second->Release();
  EXPECT_TRUE(pool->WaitReady(Forever()).ok());
}

TEST_F(HostPoolTest, PartsAreWholePiecesAndComeBack) {
  auto pool = Ready(4 * kPiece);
  {
    const PoolPart first = *pool->Carve(1);
    const PoolPart second = *pool->Carve(kPiece + 1);
    EXPECT_EQ(first.size_bytes(), kPiece);
    EXPECT_EQ(first.offset_bytes(), 0);
    EXPECT_EQ(second.size_bytes(), 2 * kPiece);
    EXPECT_EQ(second.offset_bytes(), kPiece);
    EXPECT_EQ(second.data() - first.data(), kPiece);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % kPiece, 0u);
    EXPECT_EQ(pool->stats().used_bytes, 3 * kPiece);
    EXPECT_EQ(pool->stats().largest_free_bytes, kPiece);
  }
  EXPECT_EQ(pool->stats().used_bytes, 0);
  EXPECT_EQ(pool->stats().largest_free_bytes, 4 * kPiece);
  for (const int64_t bytes : {int64_t{0}, int64_t{-5}}) {
    EXPECT_EQ(pool->Carve(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(HostPoolTest, PartsMove) {
  auto pool = Ready(2 * kPiece);
  PoolPart part = *pool->Carve(kPiece);
  PoolPart moved(std::move(part));
  part = *pool->Carve(kPiece);
  EXPECT_EQ(pool->stats().used_bytes, 2 * kPiece);
  part = std::move(moved);
  EXPECT_EQ(pool->stats().used_bytes, kPiece);
  EXPECT_EQ(part.offset_bytes(), 0);
  part = PoolPart();
  EXPECT_EQ(pool->stats().used_bytes, 0);
}

TEST_F(HostPoolTest, NoRoom) {
  auto pool = Ready(4 * kPiece);
  PoolPart first = *pool->Carve(kPiece);
  const PoolPart second = *pool->Carve(kPiece);
  first = PoolPart();  // free: piece 0, pieces 2 and 3
  for (const int64_t bytes : {3 * kPiece, INT64_MAX}) {
    const absl::Status status = pool->Carve(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReasonOf(status), "POOL_EXHAUSTED");
    EXPECT_EQ(ErrorMetadataOf(status),
              (ErrorMetadata{{"requested_bytes", std::to_string(bytes)},
                             {"free_bytes", std::to_string(3 * kPiece)},
                             {"used_bytes", std::to_string(kPiece)},
                             {"largest_contiguous_bytes", std::to_string(2 * kPiece)},
                             {"limit_bytes", std::to_string(4 * kPiece)}}));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes)));
  }
  EXPECT_EQ(pool->stats().used_bytes, kPiece) << "a refusal takes nothing";
  EXPECT_TRUE(pool->Carve(2 * kPiece).ok());
}

TEST_F(HostPoolTest, ManyThreadsCarveAndGiveBack) {
  auto pool = Ready(8 * kPiece);
  {
    std::vector<Thread> threads;
    for (uint8_t id = 1; id <= 4; ++id) {
      threads.push_back(*Thread::Start("carve", [&pool, id] {
        for (int i = 0; i < 25; ++i) {
          absl::StatusOr<PoolPart> part = pool->Carve((1 + i % 3) * kPiece);
          if (!part.ok()) continue;  // the others have it
          EXPECT_EQ(part->data()[0], 0);
          EXPECT_EQ(part->data()[part->size_bytes() - 1], 0);
          for (int64_t b = 0; b < part->size_bytes(); b += 4096) part->data()[b] = id;
          for (int64_t b = 0; b < part->size_bytes(); b += 4096) EXPECT_EQ(part->data()[b], id);
          part->data()[part->size_bytes() - 1] = id;
          (void)pool->stats();
        }
      }));
    }
  }
  EXPECT_EQ(pool->stats().used_bytes, 0);
  EXPECT_EQ(pool->stats().largest_free_bytes, 8 * kPiece);
}

TEST_F(HostPoolTest, D29_ALimitOfTheContainerIsRefusedBeforeAnyPageIsTaken) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "pool_cgroup";
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(root / "sys/fs/cgroup");
  std::ofstream(root / "proc/meminfo") << "MemAvailable: 79691776 kB\n";
  std::ofstream(root / "proc/self/cgroup") << "0::/\n";
  std::ofstream(root / "sys/fs/cgroup/memory.max") << 2147483648;
  std::ofstream(root / "sys/fs/cgroup/memory.current") << 1073741824;
  std::ofstream(root / "sys/fs/cgroup/memory.stat") << "inactive_file 1073741824\n";
  HostPoolOptions options = {.size_bytes = int64_t{4} << 30, .system_root = root.string()};
  const absl::Status status = HostPool::Create(options, backend_.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("need 4294967296 bytes, have 2147483648"));
  options.size_bytes = int64_t{2} << 30;  // all of it: page cache is not in use
  EXPECT_TRUE(HostPool::Create(options, backend_.get()).ok());

  // Somebody else takes it while we pin.
  auto pool = Create(3 * kPiece, {.system_root = root.string()});
  pool->Start([&](int64_t, int64_t) {
    std::ofstream(root / "sys/fs/cgroup/memory.current") << (int64_t{4} << 30);
  });
  const absl::Status late = pool->WaitReady(Forever());
  std::filesystem::remove_all(root);
  EXPECT_EQ(late.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("chunk 1 of the host pool"));
}

TEST_F(HostPoolTest, D20_MoreThanTheMachineHas) {
  const absl::Status status =
      HostPool::Create({.size_bytes = int64_t{1} << 49}, backend_.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("need 562949953421312 bytes"));
}

TEST_F(HostPoolTest, D20_ReservedPagesThatAreNotThereAreRefused) {
  const absl::Status status =
      HostPool::Create({.size_bytes = int64_t{1} << 45, .huge_pages = HugePages::kRequire},
                       backend_.get())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 MiB pages"));
}

// A process that dies half-way leaves nothing that a next one could trip over.
TEST_F(HostPoolTest, D28_KilledWhilePinning) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto pool = Create(1000 * kPiece);
    pool->Start([&](int64_t pinned, int64_t) {
      if (pinned == 2 * kPiece) {
        (void)!write(ready[1], "x", 1);
        pause();
      }
    });
    (void)pool->WaitReady(Forever());
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(ready[0]);
  close(ready[1]);
  auto pool = Ready(3 * kPiece);
  struct stat file = {};
  ASSERT_EQ(fstat(pool->fd().get(), &file), 0);
  EXPECT_EQ(file.st_size, 3 * kPiece);
}

}  // namespace
}  // namespace kvtier
