#include "client/cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvtier::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using Level = Finding::Level;

constexpr int64_t kGiB = int64_t{1} << 30;

auto Says(Level level, const std::string& text, const std::string& advice = "") {
  return AllOf(Field(&Finding::level, level), Field(&Finding::text, HasSubstr(text)),
               Field(&Finding::advice, HasSubstr(advice)));
}

// A machine made of files.
class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/doctor-XXXXXX");
    patient_.root = mkdtemp(pattern.data());
    patient_.socket_path = "/run/kvtierd/kvtierd.sock";
  }
  ~Doctor() override { std::filesystem::remove_all(patient_.root); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = patient_.root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  // A daemon answers, and has a pool of that size.
  void Serve(int64_t pool_bytes) {
    v1::GetNodeInfoResponse& info = patient_.info.emplace();
    info.set_version("0.1.0");
    info.set_pid(7);
    info.mutable_pool()->set_total_bytes(pool_bytes);
    info.mutable_pool()->set_state(v1::POOL_STATE_READY);
    patient_.readiness = "SERVING";
    Write("/proc/7/comm", "kvtierd\n");
  }

  void InstallDriver() {
    Write("/proc/driver/nvidia/version", "NVRM version: NVIDIA 580.1\nGCC version: 12\n");
    Write("/proc/driver/nvidia/gpus/0000:01:00.0/information",
          "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1\n");
    Write("/dev/nvidiactl", "");
    Write("/dev/nvidia-uvm", "");
  }

  Patient patient_;
};

TEST_F(Doctor, NobodyAnswers) {
  patient_.reached = absl::UnavailableError("/run/x.sock does not exist");
  EXPECT_THAT(CheckDaemon(patient_), Contains(Says(Level::kBad, "does not exist", "start it")));
  EXPECT_TRUE(IsAnyBad(Examine(patient_)));
  patient_.reached = absl::DeadlineExceededError("Deadline Exceeded");
  EXPECT_THAT(CheckDaemon(patient_), Contains(Says(Level::kBad, "Exceeded", "does it hang")));
}

TEST_F(Doctor, ADaemonThatIsNotReady) {
  Serve(kGiB);
  EXPECT_THAT(CheckDaemon(patient_), Each(Says(Level::kGood, "")));
  patient_.readiness = "NOT_SERVING";
  patient_.info->set_not_ready_reason("draining");
  EXPECT_THAT(
      CheckDaemon(patient_),
      Contains(Says(Level::kBad, "NOT_SERVING: nothing new is admitted: draining", "drain")));
  patient_.info->mutable_pool()->set_state(v1::POOL_STATE_PINNING);
  EXPECT_THAT(CheckDaemon(patient_), Contains(Says(Level::kNote, "being pinned")));
}

TEST_F(Doctor, TheFolderOfTheSocket) {
  EXPECT_THAT(CheckSocketFolder(patient_),
              Contains(Says(Level::kBad, "/run/kvtierd is not there", "RuntimeDirectory")));
  Write("/run/kvtierd/x", "");
  const std::string folder = patient_.root + "/run/kvtierd";
  chmod(folder.c_str(), 0750);
  EXPECT_THAT(CheckSocketFolder(patient_), Contains(Says(Level::kGood, "mode 0750")));
  chmod(folder.c_str(), 0770);
  EXPECT_THAT(CheckSocketFolder(patient_), Contains(Says(Level::kWarning, "0770", "chmod +t")));
  chmod(folder.c_str(), 01770);
  EXPECT_THAT(CheckSocketFolder(patient_), Contains(Says(Level::kGood, "1770")));
  chmod(folder.c_str(), 0777);
  EXPECT_THAT(CheckSocketFolder(patient_), Contains(Says(Level::kWarning, "0777", "chmod o-w")));
  chmod(folder.c_str(), 01777);
  EXPECT_THAT(CheckSocketFolder(patient_), Contains(Says(Level::kGood, "1777")));
}

TEST_F(Doctor, DriverAndGpus) {
  EXPECT_THAT(CheckDriver(patient_), Contains(Says(Level::kNote, "no NVIDIA driver")));
  InstallDriver();
  EXPECT_THAT(CheckDriver(patient_), Each(Says(Level::kGood, "")));
  EXPECT_THAT(CheckDriver(patient_), Contains(Says(Level::kGood, "GPU-1 (NVIDIA H200")));
  Serve(kGiB);
  EXPECT_THAT(CheckDriver(patient_), Contains(Says(Level::kWarning, "does not serve it")));
  patient_.info->add_devices()->set_uuid("GPU-1");
  EXPECT_THAT(CheckDriver(patient_), Each(Says(Level::kGood, "")));
  std::filesystem::remove(patient_.root + "/dev/nvidia-uvm");
  EXPECT_THAT(CheckDriver(patient_),
              Contains(Says(Level::kBad, "/dev/nvidia-uvm", "nvidia-modprobe")));
  std::filesystem::remove_all(patient_.root + "/proc/driver/nvidia/gpus");
  EXPECT_THAT(CheckDriver(patient_), Contains(Says(Level::kBad, "sees no GPU")));
}

TEST_F(Doctor, Mig) {
  Write("/proc/driver/nvidia/capabilities/gpu0/mig/config", "");
  EXPECT_THAT(CheckMig(patient_), Contains(Says(Level::kGood, "")));
  Write("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
  Write("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "");
  EXPECT_THAT(CheckMig(patient_), Contains(Says(Level::kWarning, "2 MIG instances", "-mig 0")));
}

TEST_F(Doctor, LimitsOfTheDaemon) {
  Serve(kGiB);
  const std::string head = "Limit    Soft Limit    Hard Limit    Units\n";
  Write("/proc/7/limits", head +
                              "Max open files  1024  1048576  files\n"
                              "Max locked memory  67108864  67108864  bytes\n");
  EXPECT_THAT(CheckLimits(patient_), Contains(Says(Level::kNote, "64 MiB")));
  patient_.info->add_devices()->set_backend("cuda");
  EXPECT_THAT(CheckLimits(patient_),
              AllOf(Contains(Says(Level::kWarning, "64 MiB", "LimitMEMLOCK=infinity")),
                    Contains(Says(Level::kWarning, "1024", "LimitNOFILE"))));
  Write("/proc/7/limits", head +
                              "Max open files  1048576  1048576  files\n"
                              "Max locked memory  unlimited  unlimited  bytes\n");
  EXPECT_THAT(CheckLimits(patient_), Each(Says(Level::kGood, "")));
}

TEST_F(Doctor, Pages) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
  const std::string shmem = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  Write(shmem, "always within_size [advise] never deny force\n");
  EXPECT_THAT(CheckPages(patient_), Contains(Says(Level::kGood, "shmem_enabled is advise")));
  Write(shmem, "always within_size advise [never] deny force\n");
  Write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  EXPECT_THAT(CheckPages(patient_), Contains(Says(Level::kNote, "collapse", "echo advise")));
  Write("/proc/sys/kernel/osrelease", "5.15.0\n");
  EXPECT_THAT(CheckPages(patient_), Contains(Says(Level::kWarning, "half the speed")));
  Serve(kGiB);
  patient_.info->mutable_pool()->set_page_bytes(2 << 20);
  EXPECT_THAT(CheckPages(patient_), Contains(Says(Level::kGood, "the pool lies in 2 MiB")));
  patient_.info->mutable_pool()->set_page_bytes(4096);
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n");
  EXPECT_THAT(CheckPages(patient_), Contains(Says(Level::kGood, "512 of 0")));
}

TEST_F(Doctor, TheTightestLimitOfItsGroups) {
  Serve(4 * kGiB);
  Write("/proc/7/cgroup", "0::/kube/pod/c\n");
  EXPECT_THAT(CheckCgroup(patient_), Contains(Says(Level::kGood, "no memory limit of kvtierd")));
  Write("/sys/fs/cgroup/kube/pod/c/memory.max", "max\n");
  Write("/sys/fs/cgroup/kube/pod/memory.max", absl::StrCat(4 * kGiB, "\n"));
  Write("/sys/fs/cgroup/kube/memory.max", absl::StrCat(100 * kGiB, "\n"));
  EXPECT_THAT(CheckCgroup(patient_),
              Contains(Says(Level::kBad, "/sys/fs/cgroup/kube/pod/memory.max", "4.5 GiB")));
  Write("/sys/fs/cgroup/kube/pod/memory.max", absl::StrCat(5 * kGiB, "\n"));
  EXPECT_THAT(CheckCgroup(patient_), Contains(Says(Level::kGood, "limited to 5 GiB")));
}

TEST_F(Doctor, Numa) {
  Write("/sys/devices/system/node/node0/cpulist", "0-7");
  EXPECT_THAT(CheckNuma(patient_), Contains(Says(Level::kGood, "one node")));
  Write("/sys/devices/system/node/node1/cpulist", "8-15");
  InstallDriver();
  Write("/sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n");
  EXPECT_THAT(CheckNuma(patient_),
              Contains(Says(Level::kNote, "nodes 0,1; GPU-1 on 1", "numa_node")));
}

TEST_F(Doctor, ReportsAsTextAndJson) {
  const std::vector<Finding> findings = {{Level::kGood, "a", "fine", ""},
                                         {Level::kBad, "b", "not \"fine\"", "do it"}};
  EXPECT_EQ(FindingsText(findings),
            "ok       a              fine\n"
            "bad      b              not \"fine\"\n"
            "                        -> do it\n");
  EXPECT_THAT(FindingsJson(findings), HasSubstr(R"("text": "not \"fine\"")"));
  EXPECT_TRUE(IsAnyBad(findings));
  EXPECT_FALSE(IsAnyBad({findings[0]}));
}

}  // namespace
}  // namespace kvtier::cli
