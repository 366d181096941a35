#include "server/host_pool/pool_folder.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
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
#include "server/device/cpu/cpu_backend.h"
#include "server/host_pool/host_pool.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPiece = int64_t{2} << 20;
constexpr int64_t kPoolBytes = 8 * kPiece;

CacheLayout Layout(int32_t block_count = 100) {
  CacheLayout layout;
  layout.block_size = 4;
  layout.block_count = block_count;
  layout.max_requests = 2;
  layout.max_blocks_per_request = block_count;
  layout.step_rows = 2;
  layout.dtype_tag = "bytes";
  GroupLayout group;
  group.layers = {{.value_bytes = 64, .row_stride = 64}, {.value_bytes = 32, .row_stride = 32}};
  group.top_k = 4;
  group.hot_size = 8;
  layout.groups = {group, group};
  return layout;
}

class PoolFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A folder in memory; /dev/shm is on every Linux.
    char name[] = "/dev/shm/kvtier-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    parent_ = name;
    path_ = parent_ + "/pool";
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }

  PoolFolderOptions Options() const { return {.path = path_, .pool_bytes = kPoolBytes}; }
  // `rows` must live as long as the run.
  std::unique_ptr<PoolFolder> Open() const {
    absl::StatusOr<std::unique_ptr<PoolFolder>> folder = PoolFolder::Open(Options());
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.ok() ? *std::move(folder) : nullptr;
  }
  absl::Status Failure(const PoolFolderOptions& options) const {
    return PoolFolder::Open(options).status();
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void Overwrite(const std::string& name, int64_t offset, char byte) const {
    std::fstream file(path_ + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(byte);
  }

  std::string parent_, path_;
};

TEST_F(PoolFolderTest, WhatIsCommittedIsFoundAgain) {
  const CacheManifest manifest = {
      .cache = "kv", .layout = Layout(), .part_offset_bytes = kPiece, .part_bytes = 2 * kPiece};
  {
    const auto folder = Open();
    EXPECT_TRUE(folder->rows_are_new());
    absl::StatusOr<CacheFile> file = folder->NewCacheFile(manifest);
    ASSERT_TRUE(file.ok()) << file.status();
    file->records().generations[99] = 17;
    file->records().held[99] = 1;
    file->records().tags[99] = int64_t{-5};
    file->SetRetention({.blocks_max = 12, .duration = absl::Seconds(30)});
    ASSERT_TRUE(file->Commit().ok());
    // Never named: as if the daemon had been killed in the middle.
    ASSERT_TRUE(folder->NewCacheFile(manifest).ok());
  }
  const auto folder = Open();
  EXPECT_FALSE(folder->rows_are_new());
  EXPECT_THAT(folder->dropped(), ElementsAre(HasSubstr("not finished")));
  std::vector<CacheFile> kept = folder->TakeKept();
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].manifest().cache, "kv");
  EXPECT_EQ(kept[0].manifest().part_offset_bytes, kPiece);
  EXPECT_EQ(kept[0].manifest().part_bytes, 2 * kPiece);
  EXPECT_TRUE(CompareLayouts(kept[0].manifest().layout, Layout()).ok());
  EXPECT_EQ(kept[0].manifest().layout.dtype_tag, "bytes");
  EXPECT_EQ(kept[0].records().generations[99], 17);
  EXPECT_EQ(kept[0].records().held[99], 1);
  EXPECT_EQ(kept[0].records().tags[99], -5);
  EXPECT_EQ(kept[0].retention().blocks_max, 12);
  EXPECT_EQ(kept[0].retention().duration, absl::Seconds(30));
  // What workers get can't be mapped for writing.
  void* const data = mmap(nullptr, kept[0].generations_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                          kept[0].read_only_fd().get(), kept[0].generations_offset_bytes());
  EXPECT_EQ(data, MAP_FAILED);
  kept[0].Remove();
  EXPECT_THAT(Files(), ElementsAre("pool", "rows"));
}

TEST_F(PoolFolderTest, FilesAreOfThisUserAlone) {
  const mode_t before = umask(0);
  { const auto folder = Open(); }
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  for (const std::string& name : Files()) {
    ASSERT_EQ(stat((path_ + "/" + name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U) << name;
  }
  // Others may open it: it is not trusted.
  ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  EXPECT_THAT(Failure(Options()).message(), HasSubstr("mode"));
  ASSERT_EQ(chmod(path_.c_str(), 0700), 0);
  ASSERT_EQ(chmod((path_ + "/rows").c_str(), 0660), 0);
  const auto folder = Open();
  EXPECT_THAT(folder->dropped(), ElementsAre(HasSubstr("not this user's alone")));
  EXPECT_TRUE(folder->rows_are_new());
}

TEST_F(PoolFolderTest, FoldersThatCannotBeUsed) {
  PoolFolderOptions options = Options();
  options.path = parent_ + "/missing/pool";
  EXPECT_EQ(ErrorReasonOf(Failure(options)), "FIELD_INVALID");
  options.path = std::string(testing::TempDir()) + "/kvtier-on-disk";
  struct stat status = {};
  if (stat("/dev/shm", &status) == 0) {
    EXPECT_EQ(ErrorReasonOf(Failure(options)), "FIELD_INVALID");
  }
  std::filesystem::remove(options.path);
  std::ofstream(parent_ + "/file") << "x";
  options.path = parent_ + "/file";
  EXPECT_EQ(ErrorReasonOf(Failure(options)), "FIELD_INVALID");
  std::filesystem::create_directory_symlink(parent_, parent_ + "/link");
  options.path = parent_ + "/link";
  EXPECT_EQ(ErrorReasonOf(Failure(options)), "FIELD_INVALID");

  const auto folder = Open();
  EXPECT_THAT(Failure(Options()).message(), HasSubstr("another daemon"));
}

TEST_F(PoolFolderTest, AnotherSizeIsRefusedOrDroppedAsAskedFor) {
  { const auto folder = Open(); }
  // A file that somebody has put beside ours is not ours to remove.
  std::ofstream(path_ + "/letter") << "x";
  PoolFolderOptions options = Options();
  options.pool_bytes = 2 * kPoolBytes;
  const absl::Status refused = Failure(options);
  EXPECT_EQ(ErrorReasonOf(refused), "LAYOUT_MISMATCH");
  EXPECT_THAT(refused.message(), HasSubstr(std::to_string(kPoolBytes)));
  EXPECT_THAT(refused.message(), HasSubstr(std::to_string(options.pool_bytes)));
  // Refused, it is as it was.
  { EXPECT_FALSE(Open()->rows_are_new()); }
  options.drop_mismatch = true;
  const auto folder = PoolFolder::Open(options);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE((*folder)->rows_are_new());
  EXPECT_THAT((*folder)->dropped(), SizeIs(1));
  EXPECT_THAT(Files(), ElementsAre("letter", "pool", "rows"));
}

TEST_F(PoolFolderTest, AnotherMachineStartIsDropped) {
  PoolFolderOptions options = Options();
  options.system_root = parent_;
  std::filesystem::create_directories(parent_ + "/proc/sys/kernel/random");
  const auto boot = [&](const std::string& id) {
    std::ofstream(parent_ + "/proc/sys/kernel/random/boot_id") << id << "\n";
    absl::StatusOr<std::unique_ptr<PoolFolder>> folder = PoolFolder::Open(options);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return (*folder)->rows_are_new();
  };
  EXPECT_TRUE(boot("a"));
  EXPECT_FALSE(boot("a"));
  EXPECT_TRUE(boot("b"));
  EXPECT_FALSE(boot("b"));
  // Nothing proves that it is the same.
  EXPECT_TRUE(boot(""));
  EXPECT_TRUE(boot(""));
}

TEST_F(PoolFolderTest, DamageIsDropped) {
  const CacheManifest manifest = {
      .cache = "kv", .layout = Layout(), .part_offset_bytes = 0, .part_bytes = kPiece};
  const auto make = [&] {
    const auto folder = Open();
    absl::StatusOr<CacheFile> file = folder->NewCacheFile(manifest);
    ASSERT_TRUE(file.ok() && file->Commit().ok());
  };
  // Any byte of a manifest.
  for (int64_t offset = 0; offset < 32 + 16; offset += 3) {
    make();
    Overwrite(Files()[0], offset, '\x5a');
    const auto folder = Open();
    EXPECT_THAT(folder->TakeKept(), IsEmpty()) << offset;
    EXPECT_THAT(folder->dropped(), SizeIs(1)) << offset;
    EXPECT_FALSE(folder->rows_are_new());
    EXPECT_THAT(Files(), ElementsAre("pool", "rows"));
  }
  make();
  std::filesystem::resize_file(path_ + "/" + Files()[0], 4096);
  { EXPECT_THAT(Open()->TakeKept(), IsEmpty()); }
  // The pool: with it goes all else.
  make();
  Overwrite("pool", 40, '\x5a');
  {
    const auto folder = Open();
    EXPECT_TRUE(folder->rows_are_new());
    EXPECT_THAT(folder->TakeKept(), IsEmpty());
  }
  make();
  std::filesystem::resize_file(path_ + "/rows", kPiece);
  EXPECT_TRUE(Open()->rows_are_new());
  EXPECT_THAT(Files(), ElementsAre("pool", "rows"));
  // An older pool's cache.
  make();
  std::filesystem::remove(path_ + "/pool");
  const auto folder = Open();
  EXPECT_THAT(folder->TakeKept(), IsEmpty());
}

// A worker that lives on when its daemon is killed.
TEST_F(PoolFolderTest, ProcessesThatMapTheRowsAreSeen) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t daemon = fork();
  if (daemon == 0) {
    std::unique_ptr<PoolFolder> folder = Open();
    const UniqueFd rows = folder->TakeRows();
    const pid_t worker = fork();
    if (worker == 0) {
      folder.reset();  // a worker does not have the daemon's other descriptors
      close(ends[0]);
      void* const data = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, rows.get(), 0);
      // The mapping alone.
      close(rows.get());
      const pid_t self = getpid();
      if (data == MAP_FAILED || write(ends[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
      pause();
    }
    pause();
  }
  close(ends[1]);
  pid_t worker = 0;
  ASSERT_EQ(read(ends[0], &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  kill(daemon, SIGKILL);
  ASSERT_EQ(waitpid(daemon, nullptr, 0), daemon);
  for (int run = 0; run < 2; ++run) {
    const auto folder = Open();
    EXPECT_FALSE(folder->rows_are_new());
    EXPECT_TRUE(folder->EarlierRunsMapThePool());
  }
  std::unique_ptr<PoolFolder> folder = Open();
  EXPECT_TRUE(folder->EarlierRunsMapThePool()) << "two runs ago";
  // A cache's file is lost, and with it where its rows are: they cannot be given to anybody, but
  // other memory can.
  absl::StatusOr<CacheFile> file = folder->NewCacheFile(
      {.cache = "kv", .layout = Layout(), .part_offset_bytes = 0, .part_bytes = kPiece});
  ASSERT_TRUE(file.ok() && file->Commit().ok());
  Overwrite(Files()[0], 0, 'x');
  folder.reset();
  folder = Open();
  EXPECT_TRUE(folder->rows_are_new());
  EXPECT_FALSE(folder->EarlierRunsMapThePool()) << "of these rows";
  folder.reset();
  kill(worker, SIGKILL);
  // Its end of the pipe closes when it is gone.
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

// By the descriptor that it was given, whose lock it can make an exclusive one, of all runs to
// come.
TEST_F(PoolFolderTest, AWorkerThatLocksTheRowsKeepsNoDaemonFromStarting) {
  UniqueFd workers;
  {
    const auto folder = Open();
    workers = folder->TakeRows();
    absl::StatusOr<CacheFile> file = folder->NewCacheFile(
        {.cache = "kv", .layout = Layout(), .part_offset_bytes = 0, .part_bytes = kPiece});
    ASSERT_TRUE(file.ok() && file->Commit().ok());
  }
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;  // from 0 to the end, whatever that is
  ASSERT_EQ(fcntl(workers.get(), F_OFD_SETLK, &lock), 0);
  {
    const auto folder = Open();
    ASSERT_NE(folder, nullptr);
    EXPECT_THAT(folder->dropped(), ElementsAre(HasSubstr("has locked its rows")));
    EXPECT_TRUE(folder->rows_are_new());
    EXPECT_THAT(folder->TakeKept(), IsEmpty());
    EXPECT_FALSE(folder->EarlierRunsMapThePool()) << "of these rows";
  }
  const auto folder = Open();
  ASSERT_NE(folder, nullptr);
  EXPECT_FALSE(folder->rows_are_new()) << "these the worker does not have";
  EXPECT_THAT(folder->dropped(), IsEmpty());
}

TEST_F(PoolFolderTest, ThePoolsRowsStay) {
  const auto backend = *MakeCpuBackend({});
  HostPoolOptions options = {.size_bytes = kPoolBytes, .folder = path_};
  {
    const auto pool = *HostPool::Create(options, backend.get());
    pool->Start(nullptr);
    ASSERT_TRUE(pool->WaitReady(absl::InfiniteFuture()).ok());
    absl::StatusOr<PoolPart> first = pool->Carve(kPiece);
    absl::StatusOr<PoolPart> second = pool->Carve(2 * kPiece);
    ASSERT_TRUE(first.ok() && second.ok());
    std::memset(second->data(), 0x77, 2 * kPiece);
  }
  const auto pool = *HostPool::Create(options, backend.get());
  absl::StatusOr<PoolPart> kept = pool->Adopt(kPiece, 2 * kPiece);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(absl::IsDataLoss(pool->Adopt(2 * kPiece, kPiece).status())) << "taken";
  EXPECT_TRUE(absl::IsDataLoss(pool->Adopt(7 * kPiece, 2 * kPiece).status())) << "past the end";
  EXPECT_TRUE(absl::IsDataLoss(pool->Adopt(-kPiece, kPiece).status()));
  EXPECT_TRUE(absl::IsDataLoss(pool->Adopt(0, int64_t{1} << 62).status()));
  EXPECT_TRUE(absl::IsDataLoss(pool->Adopt(4096, kPiece).status()));
  pool->Start(nullptr);
  ASSERT_TRUE(pool->WaitReady(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(std::all_of(kept->data(), kept->data() + 2 * kPiece,
                          [](uint8_t byte) { return byte == 0x77; }));
  // The rest is given out as zeros, whatever lay there.
  *kept = PoolPart();
  absl::StatusOr<PoolPart> fresh = pool->Carve(kPoolBytes);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_TRUE(std::all_of(fresh->data(), fresh->data() + kPoolBytes,
                          [](uint8_t byte) { return byte == 0; }));
}

// Stopped while it pins, the rows are still there.
TEST_F(PoolFolderTest, ACancelledStartLosesNothing) {
  const auto backend = *MakeCpuBackend({});
  HostPoolOptions options = {.size_bytes = kPoolBytes, .chunk_bytes = kPiece, .folder = path_};
  {
    const auto pool = *HostPool::Create(options, backend.get());
    pool->Start(nullptr);
    ASSERT_TRUE(pool->WaitReady(absl::InfiniteFuture()).ok());
    std::memset(pool->Carve(kPiece)->data(), 0x66, kPiece);
  }
  {
    const auto pool = *HostPool::Create(options, backend.get());
    HostPool* const pinning = pool.get();
    pool->Start([pinning](int64_t, int64_t) { pinning->Cancel(); });
    EXPECT_TRUE(absl::IsUnavailable(pool->WaitReady(absl::InfiniteFuture())));
  }
  const auto pool = *HostPool::Create(options, backend.get());
  EXPECT_EQ(pool->Adopt(0, kPiece)->data()[kPiece - 1], 0x66);
}

}  // namespace
}  // namespace kvtier
