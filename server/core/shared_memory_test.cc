#include "server/core/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 3 * 4096 + 100;

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFdTest, ClosesOnce) {
  int raw = -1;
  {
    UniqueFd fd(memfd_create("x", MFD_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    raw = fd.get();
    UniqueFd moved(std::move(fd));
    EXPECT_EQ(moved.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
    moved = UniqueFd(memfd_create("y", MFD_CLOEXEC));
    EXPECT_FALSE(IsOpen(raw));
    raw = moved.get();
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, ReleaseGivesItAway) {
  UniqueFd fd(memfd_create("x", MFD_CLOEXEC));
  const int raw = fd.Release();
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(IsOpen(raw));
  close(raw);
}

TEST(UniqueFdTest, DuplicateIsAnotherDescriptorClosedOnExec) {
  const UniqueFd fd(memfd_create("x", MFD_CLOEXEC));
  const UniqueFd copy = fd.Duplicate();
  ASSERT_TRUE(copy.valid());
  EXPECT_NE(copy.get(), fd.get());
  EXPECT_EQ(fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_FALSE(UniqueFd().Duplicate().valid());
}

TEST(SharedMemoryTest, IsZeroFilledWritableAndOfExactSize) {
  const absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size_bytes(), kBytes);
  EXPECT_TRUE(
      std::all_of(memory->data(), memory->data() + kBytes, [](uint8_t b) { return b == 0; }));
  std::memset(memory->data(), 0xcd, kBytes);
  struct stat file = {};
  ASSERT_EQ(fstat(memory->fd().get(), &file), 0);
  EXPECT_EQ(file.st_size, kBytes);
  EXPECT_EQ(fcntl(memory->fd().get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedMemoryTest, D20_PagesAreThereBeforeTheFirstTouch) {
  const SharedMemory memory = *SharedMemory::Create("test", 16 << 20);
  struct stat file = {};
  ASSERT_EQ(fstat(memory.fd().get(), &file), 0);
  EXPECT_GE(int64_t{file.st_blocks} * 512, 16 << 20);
}

TEST(SharedMemoryTest, CannotGrowShrinkOrBeUnsealed) {
  const SharedMemory memory = *SharedMemory::Create("test", kBytes);
  for (const int64_t size : {int64_t{0}, kBytes - 1, kBytes + 1}) {
    EXPECT_EQ(ftruncate(memory.fd().get(), size), -1) << size;
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(fcntl(memory.fd().get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
}

TEST(SharedMemoryTest, AnotherMappingSeesWritesBothWays) {
  const SharedMemory memory = *SharedMemory::Create("test", kBytes);
  void* other = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd().get(), 0);
  ASSERT_NE(other, MAP_FAILED);
  memory.data()[0] = 1;
  static_cast<uint8_t*>(other)[kBytes - 1] = 2;
  EXPECT_EQ(static_cast<uint8_t*>(other)[0], 1);
  EXPECT_EQ(memory.data()[kBytes - 1], 2);
  munmap(other, kBytes);
}

TEST(SharedMemoryTest, ReadOnlyForOthers) {
  const SharedMemory memory = *SharedMemory::Create("test", kBytes, /*read_only_for_others=*/true);
  memory.data()[5] = 7;  // the owner still writes
  const UniqueFd given = memory.fd().Duplicate();
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, given.get(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(pwrite(given.get(), "x", 1, 0), -1);
  EXPECT_EQ(fallocate(given.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);

  void* reader = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, given.get(), 0);
  ASSERT_NE(reader, MAP_FAILED);
  EXPECT_EQ(static_cast<uint8_t*>(reader)[5], 7);
  memory.data()[5] = 8;
  EXPECT_EQ(static_cast<uint8_t*>(reader)[5], 8);
  EXPECT_EQ(mprotect(reader, kBytes, PROT_READ | PROT_WRITE), -1) << "and it stays read-only";
  munmap(reader, kBytes);
}

TEST(SharedMemoryTest, MovesOwnTheMapping) {
  SharedMemory first = *SharedMemory::Create("first", kBytes);
  uint8_t* data = first.data();
  const int fd = first.fd().get();
  data[0] = 9;
  SharedMemory moved(std::move(first));
  EXPECT_EQ(moved.data(), data);
  SharedMemory other = *SharedMemory::Create("other", kBytes);
  const int other_fd = other.fd().get();
  other = std::move(moved);
  EXPECT_EQ(other.data()[0], 9);
  EXPECT_TRUE(IsOpen(fd));
  EXPECT_FALSE(IsOpen(other_fd));
}

TEST(SharedMemoryTest, D03_TheMappingOutlivesItsCreator) {
  void* other = nullptr;
  {
    const SharedMemory memory = *SharedMemory::Create("test", kBytes);
    memory.data()[3] = 4;
    other = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd().get(), 0);
    ASSERT_NE(other, MAP_FAILED);
  }
  EXPECT_EQ(static_cast<uint8_t*>(other)[3], 4);
  munmap(other, kBytes);
}

TEST(SharedMemoryTest, NonsenseSizesAreErrors) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_EQ(SharedMemory::Create("test", bytes).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharedMemoryTest, D20_MoreThanTheMachineHasIsRefusedAtOnce) {
  for (const int64_t bytes : {int64_t{1} << 50, INT64_MAX}) {
    const absl::Status status = SharedMemory::Create("test", bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes)));
  }
}

// A limit that the kernel enforces: its error is ours, and no signal.
TEST(SharedMemoryTest, D20_AKernelRefusalIsAnErrorWithItsText) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 8192, .rlim_max = 8192};
    setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = SharedMemory::Create("test", 65536).status();
    const bool right = status.code() == absl::StatusCode::kResourceExhausted &&
                       status.message().find("File too large") != absl::string_view::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SharedMemoryTest, NamesOfAnyLengthAndBytes) {
  EXPECT_TRUE(SharedMemory::Create(std::string(1000, 'n'), kBytes).ok());
  EXPECT_TRUE(SharedMemory::Create("", kBytes).ok());
  EXPECT_TRUE(SharedMemory::Create(absl::string_view("a\0/b", 4), kBytes).ok());
}

}  // namespace
}  // namespace kvtier
