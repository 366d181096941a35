#include "tests/gpu/victim.h"

#if defined(KVTIER_TEST_CUDA)
#include <cuda_runtime_api.h>
#endif
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kvtier::testing {
namespace {

constexpr char kVictim[] = "tests/gpu/victim";

int64_t CountEntries(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::directory_iterator entries(path, ignored);
  return std::distance(begin(entries), end(entries));
}

bool IsBack(const Usage& now, const Usage& baseline) {
  // What the driver keeps of a context for the next one is given and taken in pieces of 2 MiB.
  constexpr int64_t kDriverBytes = int64_t{4} << 20;
  // gRPC keeps threads and descriptors for its busiest moment; one of each victim's would be more.
  constexpr int64_t kGrpcKeeps = 4;
  return now.sessions <= baseline.sessions && now.pool_bytes <= baseline.pool_bytes &&
         now.device_bytes <= baseline.device_bytes &&
         now.descriptors <= baseline.descriptors + kGrpcKeeps &&
         now.threads <= baseline.threads + kGrpcKeeps &&
         now.free_gpu_bytes >= baseline.free_gpu_bytes - kDriverBytes;
}

}  // namespace

#if defined(KVTIER_TEST_CUDA)
const char* const kBackendName = "cuda";

std::string WhyNoDevice() {
  const cudaError_t error = cudaFree(nullptr);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

static int64_t FreeGpuBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}
#else
const char* const kBackendName = "cpu";
std::string WhyNoDevice() { return ""; }
static int64_t FreeGpuBytes() { return 0; }
#endif

Victim::Victim(const std::string& socket_path, const std::string& phase) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  pid_ = fork();
  if (pid_ == 0) {
    // A test that dies takes its victims along.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDOUT_FILENO);
    execl(kVictim, kVictim, socket_path.c_str(), phase.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

Victim::~Victim() {
  Kill();
  close(output_);
}

bool Victim::WaitForCalls(int calls) {
  char byte = 0;
  for (int i = 0; i <= calls; ++i) {
    if (read(output_, &byte, 1) != 1) return false;
  }
  return true;
}

void Victim::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  int status = 0;
  EXPECT_GT(waitpid(std::exchange(pid_, -1), &status, 0), 0);
}

Usage UsageOf(e2e::Daemon& daemon) {
  Usage usage = {.free_gpu_bytes = FreeGpuBytes()};
  const v1::GetStatsResponse stats = daemon.Stats();
  usage.sessions = stats.sessions();
  usage.pool_bytes = stats.pool().used_bytes();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + e2e::kPatience));
  v1::GetNodeInfoResponse info;
  EXPECT_TRUE(daemon.admin().GetNodeInfo(&context, v1::GetNodeInfoRequest(), &info).ok());
  for (const v1::DeviceInfo& device : info.devices()) usage.device_bytes += device.used_bytes();
  const std::string process = absl::StrCat("/proc/", daemon.pid());
  usage.descriptors = CountEntries(process + "/fd");
  usage.threads = CountEntries(process + "/task");
  return usage;
}

std::string Describe(const Usage& usage) {
  return absl::StrCat(usage.sessions, " sessions, pool ", usage.pool_bytes, ", device ",
                      usage.device_bytes, ", free ", usage.free_gpu_bytes, " bytes, ",
                      usage.descriptors, " descriptors, ", usage.threads, " threads");
}

absl::Duration TimeUntilBack(e2e::Daemon& daemon, const Usage& baseline, absl::Time start) {
  while (true) {
    const bool back = IsBack(UsageOf(daemon), baseline);
    const absl::Duration passed = absl::Now() - start;
    if (back) return passed;
    if (passed > absl::Seconds(10)) return absl::InfiniteDuration();
    sched_yield();
  }
}

}  // namespace kvtier::testing
