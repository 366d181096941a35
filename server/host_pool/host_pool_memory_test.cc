#include "server/host_pool/host_pool_memory.h"

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

constexpr int64_t kHuge = int64_t{2} << 20;

int64_t ResidentBytes(const PoolMemory& memory) {
  struct stat file = {};
  return fstat(memory.fd().get(), &file) == 0 ? int64_t{file.st_blocks} * 512 : -1;
}

bool AllZero(const PoolMemory& memory) {
  return std::all_of(memory.data(), memory.data() + memory.size_bytes(),
                     [](uint8_t b) { return b == 0; });
}

TEST(PoolMemoryTest, TakesPagesWhenTold) {
  for (const HugePages mode : {HugePages::kAuto, HugePages::kNever}) {
    absl::StatusOr<PoolMemory> memory = PoolMemory::Create(4 * kHuge, mode, -1);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % kHuge, 0u);
    EXPECT_EQ(ResidentBytes(*memory), 0);
    ASSERT_TRUE(memory->TakePages(kHuge, 2 * kHuge).ok());
    EXPECT_EQ(ResidentBytes(*memory), 2 * kHuge);
    ASSERT_TRUE(memory->TakePages(0, 4 * kHuge).ok()) << "again, with some there already";
    EXPECT_EQ(ResidentBytes(*memory), 4 * kHuge);
    EXPECT_TRUE(AllZero(*memory));
    std::memset(memory->data(), 0xcd, memory->size_bytes());
    memory->DropPages();
    EXPECT_EQ(ResidentBytes(*memory), 0);
    EXPECT_TRUE(AllZero(*memory));
  }
}

TEST(PoolMemoryTest, HugeBytesAreWhatTheKernelSays) {
  const PoolMemory small = *PoolMemory::Create(4 * kHuge, HugePages::kNever, -1);
  ASSERT_TRUE(small.TakePages(0, 4 * kHuge).ok());
  EXPECT_EQ(small.HugeBytes(), 0);
  const PoolMemory automatic = *PoolMemory::Create(4 * kHuge, HugePages::kAuto, -1);
  EXPECT_EQ(automatic.HugeBytes(), 0) << "nothing is taken yet";
  ASSERT_TRUE(automatic.TakePages(0, 4 * kHuge).ok());
  // All or some or none: that is the system's choice.
  EXPECT_EQ(automatic.HugeBytes() % kHuge, 0);
  EXPECT_LE(automatic.HugeBytes(), 4 * kHuge);
  RecordProperty("huge_bytes", std::to_string(automatic.HugeBytes()));
}

TEST(PoolMemoryTest, D28_SizeIsExactAndCannotChange) {
  const PoolMemory memory = *PoolMemory::Create(2 * kHuge, HugePages::kAuto, -1);
  struct stat file = {};
  ASSERT_EQ(fstat(memory.fd().get(), &file), 0);
  EXPECT_EQ(file.st_size, 2 * kHuge);
  EXPECT_EQ(ftruncate(memory.fd().get(), kHuge), -1);
  EXPECT_EQ(ftruncate(memory.fd().get(), 3 * kHuge), -1);
  EXPECT_EQ(fcntl(memory.fd().get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(PoolMemoryTest, MovesOwnTheMapping) {
  PoolMemory first = *PoolMemory::Create(kHuge, HugePages::kNever, -1);
  uint8_t* const data = first.data();
  data[0] = 1;
  PoolMemory second(std::move(first));
  EXPECT_EQ(second.data(), data);
  PoolMemory third;
  third = std::move(second);
  EXPECT_EQ(third.data()[0], 1);
  EXPECT_EQ(third.size_bytes(), kHuge);
}

TEST(PoolMemoryTest, NumaNode) {
  const absl::StatusOr<PoolMemory> bound = PoolMemory::Create(kHuge, HugePages::kNever, 0);
  if (bound.ok()) {
    EXPECT_TRUE(bound->TakePages(0, kHuge).ok());
  } else {
    EXPECT_THAT(std::string(bound.status().message()), HasSubstr("mbind"));
  }
  for (const int32_t node : {63, 64, 1000, 1023, 1024, 1 << 30}) {
    const absl::Status status = PoolMemory::Create(kHuge, HugePages::kNever, node).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << node;
    EXPECT_EQ(ErrorMetadataOf(status).at("value"), std::to_string(node));
  }
}

// D20: pages that cannot be had are an error. A file-size limit stands for a full tmpfs: the
// kernel refuses either in the same place.
TEST(PoolMemoryTest, D20_ShortageIsAnErrorNotASignal) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = PoolMemory::Create(kHuge, HugePages::kAuto, -1).status();
    _exit(status.code() == absl::StatusCode::kResourceExhausted &&
                  status.message().find("2097152") != absl::string_view::npos
              ? 0
              : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Reserved pages that are not there: at once, with the size, and no SIGBUS later.
TEST(PoolMemoryTest, D20_ReservedPagesThatAreNotThere) {
  const absl::Status status =
      PoolMemory::Create(int64_t{1} << 45, HugePages::kRequire, -1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("35184372088832"));
}

TEST(HugeBytesInSmapsTest, AddsUpTheMappingsOfTheRange) {
  const std::string smaps =
      "7f0000000000-7f0000400000 rw-s 00000000 00:01 1     /memfd:kvtier-host-pool (deleted)\n"
      "Size:               4096 kB\n"
      "KernelPageSize:        4 kB\n"
      "ShmemPmdMapped:     2048 kB\n"
      "VmFlags: rd wr sh\n"
      "7f0000400000-7f0000800000 rw-s 00400000 00:01 1     /memfd:kvtier-host-pool (deleted)\n"
      "KernelPageSize:        4 kB\n"
      "ShmemPmdMapped:     4096 kB\n"
      "7f0000800000-7f0000a00000 rw-s 00000000 00:0e 2     /anon_hugepage (deleted)\n"
      "KernelPageSize:     2048 kB\n"
      "ShmemPmdMapped:        0 kB\n";
  EXPECT_EQ(HugeBytesInSmaps(smaps, 0x7f0000000000, 0x7f0000800000), 3 * kHuge);
  EXPECT_EQ(HugeBytesInSmaps(smaps, 0x7f0000400000, 0x7f0000800000), 2 * kHuge);
  EXPECT_EQ(HugeBytesInSmaps(smaps, 0x7f0000800000, 0x7f0000a00000), kHuge);
  EXPECT_EQ(HugeBytesInSmaps(smaps, 0x1000, 0x2000), 0);
  EXPECT_EQ(HugeBytesInSmaps("", 0, UINT64_MAX), 0);
  EXPECT_EQ(HugeBytesInSmaps("ShmemPmdMapped: 5 kB\n-\nx-y z\n", 0, UINT64_MAX), 0);
}

}  // namespace
}  // namespace kvtier
