#include "server/core/memory_headroom.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

class MemoryHeadroomTest : public ::testing::Test {
 protected:
  MemoryHeadroomTest() {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = std::filesystem::path(::testing::TempDir()) / ("headroom_" + name);
    std::filesystem::remove_all(root_);
  }
  ~MemoryHeadroomTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMeminfo(int64_t available_bytes) {
    Write("proc/meminfo", "MemTotal:       100000000 kB\nMemFree:        1 kB\nMemAvailable:   " +
                              std::to_string(available_bytes / 1024) + " kB\n");
  }
  MemoryHeadroom Read() { return ReadMemoryHeadroom(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(MemoryHeadroomTest, NothingReadableIsNoLimit) {
  EXPECT_EQ(Read().available_bytes, INT64_MAX);
  EXPECT_TRUE(CheckMemoryHeadroom(Read(), "x", INT64_MAX).ok());
}

TEST_F(MemoryHeadroomTest, TheMachineAlone) {
  WriteMeminfo(76 * kGiB);
  EXPECT_EQ(Read().available_bytes, 76 * kGiB);
  EXPECT_THAT(Read().limited_by, HasSubstr("MemAvailable"));
}

TEST_F(MemoryHeadroomTest, D29_ContainerLimitOfVersion2) {
  WriteMeminfo(76 * kGiB);
  Write("proc/self/cgroup", "0::/kubepods/pod1\n");
  Write("sys/fs/cgroup/kubepods/pod1/memory.max", std::to_string(2 * kGiB) + "\n");
  Write("sys/fs/cgroup/kubepods/pod1/memory.current", std::to_string(kGiB) + "\n");
  Write("sys/fs/cgroup/kubepods/pod1/memory.stat",
        "anon 1000\nfile 900\nshmem 300\ninactive_file 400\nactive_file 200\n");
  // Page cache makes room; shared memory, which memory.stat counts as file too, does not.
  EXPECT_EQ(Read().available_bytes, 2 * kGiB - (kGiB - 600));
  EXPECT_THAT(Read().limited_by, HasSubstr("/sys/fs/cgroup/kubepods/pod1/memory.max = 2147483648"));
}

TEST_F(MemoryHeadroomTest, D29_ContainerLimitOfVersion1) {
  WriteMeminfo(76 * kGiB);
  Write("proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/docker/abc\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/docker/abc/";
  Write(folder + "memory.limit_in_bytes", std::to_string(8 * kGiB));
  Write(folder + "memory.usage_in_bytes", std::to_string(3 * kGiB));
  Write(folder + "memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file " +
                                    std::to_string(kGiB) + "\ntotal_active_file 0\n");
  EXPECT_EQ(Read().available_bytes, 6 * kGiB);
}

TEST_F(MemoryHeadroomTest, Version1WithoutALimitHasAVeryLargeOne) {
  WriteMeminfo(kGiB);
  Write("proc/self/cgroup", "4:memory:/a\n");
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(Read().available_bytes, kGiB);
}

TEST_F(MemoryHeadroomTest, ALimitAboveTheOwnGroupCounts) {
  WriteMeminfo(76 * kGiB);
  Write("proc/self/cgroup", "0::/slice/pod/container\n");
  Write("sys/fs/cgroup/slice/pod/container/memory.max", "max\n");
  Write("sys/fs/cgroup/slice/pod/container/memory.current", "1\n");
  Write("sys/fs/cgroup/slice/memory.max", std::to_string(4 * kGiB));
  Write("sys/fs/cgroup/slice/memory.current", std::to_string(kGiB));
  EXPECT_EQ(Read().available_bytes, 3 * kGiB);
  // A smaller one at the mount, as a container without its own cgroup namespace sees it.
  Write("sys/fs/cgroup/memory.max", std::to_string(2 * kGiB));
  Write("sys/fs/cgroup/memory.current", "0");
  EXPECT_EQ(Read().available_bytes, 2 * kGiB);
}

TEST_F(MemoryHeadroomTest, UsedBeyondTheLimitIsZero) {
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/memory.max", "1000");
  Write("sys/fs/cgroup/a/memory.current", "5000");
  EXPECT_EQ(Read().available_bytes, 0);
}

TEST_F(MemoryHeadroomTest, DamagedFilesArePassedOver) {
  Write("proc/meminfo", "MemAvailable: lots\n\n:::\nMemAvailable:\n");
  Write("proc/self/cgroup", "garbage\n0:\n0::\n:::\n");
  Write("sys/fs/cgroup/memory.max", "");
  EXPECT_EQ(Read().available_bytes, INT64_MAX);
}

TEST_F(MemoryHeadroomTest, ANumaNodeHasLessThanTheMachine) {
  WriteMeminfo(76 * kGiB);
  Write(
      "sys/devices/system/node/node1/meminfo",
      "Node 1 MemTotal: 9000000 kB\nNode 1 MemFree:        1000 kB\nNode 1 Active(file):   20 kB\n"
      "Node 1 Inactive(file): 3 kB\nNode 1 FilePages: 500 kB\n");
  EXPECT_EQ(Read().available_bytes, 76 * kGiB);
  EXPECT_EQ(ReadMemoryHeadroom(root_.string(), 1).available_bytes, 1023 * 1024);
  EXPECT_THAT(ReadMemoryHeadroom(root_.string(), 1).limited_by, HasSubstr("NUMA node 1"));
  EXPECT_EQ(ReadMemoryHeadroom(root_.string(), 2).available_bytes, 76 * kGiB);
}

TEST_F(MemoryHeadroomTest, ReservedHugePages) {
  EXPECT_EQ(ReadHugePageHeadroom(root_.string()).available_bytes, 0);
  const std::string folder = "sys/kernel/mm/hugepages/hugepages-2048kB/";
  Write(folder + "free_hugepages", "10\n");
  Write(folder + "resv_hugepages", "3\n");
  EXPECT_EQ(ReadHugePageHeadroom(root_.string()).available_bytes, int64_t{7} << 21);
}

TEST_F(MemoryHeadroomTest, D29_TheErrorHasLimitAndRequest) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", std::to_string(2 * kGiB));
  Write("sys/fs/cgroup/memory.current", "0");
  EXPECT_TRUE(CheckMemoryHeadroom(Read(), "the host pool", 2 * kGiB).ok());
  const absl::Status status = CheckMemoryHeadroom(Read(), "the host pool", 4 * kGiB);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(status), "LIMIT_REACHED");
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("the host pool"));
  EXPECT_THAT(text, HasSubstr("need 4294967296 bytes, have 2147483648"));
  EXPECT_EQ(ErrorMetadataOf(status).at("requested_bytes"), "4294967296");
  EXPECT_EQ(ErrorMetadataOf(status).at("limit"), "2147483648");
}

TEST(MemoryHeadroomOfThisMachineTest, IsPlausible) {
  const MemoryHeadroom headroom = ReadMemoryHeadroom();
  EXPECT_GT(headroom.available_bytes, 0);
  EXPECT_LT(headroom.available_bytes, int64_t{1} << 50);
}

}  // namespace
}  // namespace kvtier
