// A daemon and its workers: both planes on recorded traces, and death on either side.
//
// Built twice: for a GPU (KVTIER_TEST_CUDA; skipped, and said so, where there is none), and for the
// CPU. Runs where its data lie as Bazel lays them out, as tools/gpu_daemon_bundle does too.
#if defined(KVTIER_TEST_CUDA)
#include <cuda_runtime_api.h>
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cache.h"
#include "client/demo/device.h"
#include "client/demo/worker.h"
#include "client/error.h"
#include "client/session.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"

namespace kvtier::e2e {
namespace {

constexpr int kSteps = 192;  // of each of six documents: 1,152 decode steps a worker
const char* const kDocuments[] = {"c_source", "essay", "java_source",
                                  "manual",   "novel", "python_source"};

#if defined(KVTIER_TEST_CUDA)
constexpr char kBackend[] = "cuda";

// Empty: there is one, and this process has a context on it, before anybody takes a baseline.
std::string WhyNoDevice() {
  const cudaError_t error = cudaFree(nullptr);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

int64_t FreeDeviceBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}
#else
constexpr char kBackend[] = "cpu";
std::string WhyNoDevice() { return ""; }
int64_t FreeDeviceBytes() { return 0; }
#endif

// What the daemon holds on its first GPU.
int64_t UsedDeviceBytes(Daemon* daemon) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  v1::GetNodeInfoResponse info;
  EXPECT_TRUE(daemon->admin().GetNodeInfo(&context, v1::GetNodeInfoRequest(), &info).ok());
  return info.devices_size() == 0 ? -1 : info.devices(0).used_bytes();
}

// A worker process (client/demo/worker), and the last counts that it told.
class Worker {
 public:
  Worker(const Daemon& daemon, const std::string& plane, int steps) {
    std::vector<std::string> traces;
    for (const char* document : kDocuments) {
      traces.push_back(absl::StrCat("tests/traces/", document, ".kvtrace"));
    }
    std::vector<std::string> words = {"client/demo/worker",
                                      "--socket=" + daemon.socket_path(),
                                      "--name=" + plane,
                                      "--plane=" + plane,
                                      "--cache=" + plane,
                                      absl::StrCat("--steps=", steps),
                                      "--traces=" + absl::StrJoin(traces, ",")};
    int in[2], out[2];
    // A worker must not hold the ends of another one's pipes.
    EXPECT_EQ(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = fdopen(out[0], "r");
  }
  ~Worker() {
    if (pid_ > 0) Kill();
    close(input_);
    if (output_ != nullptr) (void)fclose(output_);
  }

  // Reads the next line; false at the end of its output.
  bool Read() {
    char line[1024];
    if (fgets(line, sizeof(line), output_) == nullptr) return false;
    done_ = absl::StrContains(line, "\"done\"");
    for (absl::string_view part : absl::StrSplit(line, absl::ByAnyChar(",{}"), absl::SkipEmpty())) {
      const std::vector<std::string> pair = absl::StrSplit(part, ": ");
      int64_t value = 0;
      if (pair.size() == 2 && absl::SimpleAtoi(pair[1], &value)) {
        std::string name = pair[0];
        counts_[name.substr(name.find('"') + 1, name.rfind('"') - name.find('"') - 1)] = value;
      }
    }
    return true;
  }
  bool ReadUntilDone() {
    while (!done_ && Read()) {
    }
    return done_;
  }
  // Lets it leave; its exit status.
  int Finish() {
    close(std::exchange(input_, -1));
    return Wait();
  }
  void Kill() {
    kill(pid_, SIGKILL);
    Wait();
  }
  int64_t operator[](const std::string& name) { return counts_[name]; }

 private:
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  pid_t pid_ = -1;
  int input_ = -1;
  FILE* output_ = nullptr;
  bool done_ = false;
  std::map<std::string, int64_t> counts_;
};

DaemonOptions Options(const std::string& device_memory = "fd") {
  return {.pool_bytes = int64_t{2} << 30,
          .backend = kBackend,
          .flags = {"--device_memory=" + device_memory}};
}

class PlanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
    alarm(240);  // a test that hangs ends here, before Bazel would leave its processes behind
  }

  // Both workers to the end, every row checked, the daemon's counters equal to an exact LRU's.
  static void Decode(const std::string& device_memory, int steps) {
    Daemon daemon(Options(device_memory));
    ASSERT_TRUE(daemon.WaitUntilReady());
    Worker graph(daemon, "in_process", steps), rpc(daemon, "rpc", steps);
    for (Worker* worker : {&graph, &rpc}) {
      ASSERT_TRUE(worker->ReadUntilDone());
      EXPECT_EQ((*worker)["decode_steps"], 6 * steps);
      EXPECT_GT((*worker)["rows_checked"], 0);
      EXPECT_EQ((*worker)["mismatched_rows"], 0);
    }
    const auto sum = [&](const char* name) { return graph[name] + rpc[name]; };
    EXPECT_TRUE(daemon.WaitForStats([&](const v1::GetStatsResponse& stats) {
      int64_t hits = 0, misses = 0, newest = 0, backed = 0;
      for (const v1::CacheStats& cache : stats.caches()) {
        hits += cache.counters().hits();
        misses += cache.counters().misses();
        newest += cache.counters().newest();
        backed += cache.counters().backed_up_rows();
      }
      return hits == sum("hits") && misses == sum("misses") && newest == sum("newest") &&
             backed == sum("backed_up_rows");
    })) << daemon.Stats().ShortDebugString();
    EXPECT_EQ(graph.Finish(), 0);
    EXPECT_EQ(rpc.Finish(), 0);
    std::printf("%s: steps %ld, rows checked %ld, hits %ld, misses %ld\n", device_memory.c_str(),
                sum("decode_steps"), sum("rows_checked"), sum("hits"), sum("misses"));
    EXPECT_EQ(daemon.Stop(), 0);
  }
};

TEST_F(PlanesTest, TwoWorkersDecodeOnBothPlanes) { Decode("fd", kSteps); }

#if defined(KVTIER_TEST_CUDA)
TEST_F(PlanesTest, TheSameThroughIpcHandles) { Decode("ipc", 24); }
#endif

TEST_F(PlanesTest, D12_ADeviceThatIsNotThere) {
  Daemon daemon(Options());
  auto session = daemon.Open("worker");
  ASSERT_TRUE(session.ok()) << session.status();
  const auto cache =
      client::Cache::Attach(*session, {.cache = "kv",
                                       .layout = demo::DemoLayout(1, 64, 2, 64),
                                       .device_uuid = "GPU-00000000-0000-0000-0000-000000000000",
                                       .wait_for_pool = absl::Minutes(1)});
  EXPECT_EQ(client::ErrorReasonOf(cache.status()), "DEVICE_UNKNOWN") << cache.status();
}

TEST_F(PlanesTest, AKilledWorkerHoldsNothingUp) {
  const int64_t before = FreeDeviceBytes();
  {
    Daemon daemon(Options());
    ASSERT_TRUE(daemon.WaitUntilReady());
    for (const std::string plane : {"in_process", "rpc"}) {
      Worker other(daemon, plane == "rpc" ? "in_process" : "rpc", 48);
      Worker victim(daemon, plane, kSteps);
      while ((victim)["decode_steps"] < 20) ASSERT_TRUE(victim.Read());
      victim.Kill();  // in mid-step, most likely
      ASSERT_TRUE(other.ReadUntilDone());
      EXPECT_EQ(other["mismatched_rows"], 0);
      EXPECT_EQ(other.Finish(), 0);
      EXPECT_TRUE(daemon.WaitForStats([](const v1::GetStatsResponse& stats) {
        return stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
      })) << daemon.Stats().ShortDebugString();
      EXPECT_EQ(UsedDeviceBytes(&daemon), 0);
    }
    EXPECT_EQ(daemon.Stop(), 0);
  }
  EXPECT_GE(FreeDeviceBytes(), before - (int64_t{4} << 20));
}

// Decodes in this process, so that what happens after the daemon's death can be looked at.
class OrphanTest : public PlanesTest {
 protected:
  void Attach(Daemon* daemon, demo::Plane plane) {
    auto session = daemon->Open("orphan");
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = std::make_unique<client::Session>(*std::move(session));
    auto cache = client::Cache::Attach(*session_, {.cache = "kv",
                                                   .layout = demo::DemoLayout(1, 64, 2, 64),
                                                   .wait_for_pool = absl::Minutes(1)});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = std::make_unique<client::Cache>(*std::move(cache));
    auto request = cache_->Admit("r", 8);
    ASSERT_TRUE(request.ok()) << request.status();
    request_ = std::make_unique<client::Request>(*std::move(request));
    ASSERT_TRUE(request_->AssignBlocks(8).ok());
    auto device = demo::MakeDevice(cache_.get(), plane);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    demo::PrefillRows rows = {.row_count = kRows};
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<uint8_t>& bytes = rows.layers.emplace_back();
      for (int row = 0; row < kRows; ++row) bytes.insert(bytes.end(), kRowBytes, ByteOf(row));
    }
    for (int row = 0; row < kRows; ++row) rows.slots.push_back(request_->SlotOf(row));
    rows.regions.assign(kRows, request_->region());
    ASSERT_TRUE(device_->Prefill(rows).ok());
  }

  // A step that asks for 64 rows from `first` on; how many of them are wrong, or an error.
  absl::StatusOr<int> WrongRows(int first) {
    const client::CacheView& view = device_->view();
    view.row_to_request[0] = request_->region();
    view.newest_slot[0] = -1;
    *view.num_real_rows = 1;
    for (int i = 0; i < 64; ++i) view.groups[0].topk[i] = (first + i) % kRows;
    if (absl::Status status = device_->SwapIn(1); !status.ok()) return status;
    int wrong = 0;
    for (int i = 0; i < 64; ++i) {
      for (int layer = 0; layer < 2; ++layer) {
        const auto row = view.groups[0].layers[layer].hot.value(view.groups[0].hot_indices[i]);
        for (const uint8_t byte : row) {
          if (byte == ByteOf((first + i) % kRows)) continue;
          ++wrong;
          break;
        }
        wrong += row.empty();
      }
    }
    return wrong;
  }

  static constexpr int kRows = 512, kRowBytes = 656;
  static uint8_t ByteOf(int row) { return static_cast<uint8_t>(row * 37 + row / 256 + 1); }

  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Cache> cache_;
  std::unique_ptr<client::Request> request_;
  std::unique_ptr<demo::Device> device_;
};

TEST_F(OrphanTest, GraphsOutliveTheDaemon) {
  Daemon daemon(Options());
  Attach(&daemon, demo::Plane::kInProcess);
  if (HasFatalFailure()) return;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(WrongRows(i * 7).value_or(-1), 0) << i;
  daemon.Kill();
  ASSERT_TRUE(session_->WaitUntilEnded(kPatience));
  EXPECT_EQ(session_->state(), client::SessionState::kLost);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(WrongRows(i * 31).value_or(-1), 0) << i;
  EXPECT_TRUE(absl::IsUnavailable(cache_->BackupRpc(1).status()));
}

TEST_F(OrphanTest, NobodyWaitsForADeadDaemon) {
  Daemon daemon(Options());
  Attach(&daemon, demo::Plane::kRpc);
  if (HasFatalFailure()) return;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(WrongRows(i * 7).value_or(-1), 0) << i;
  // Killed between two calls or in the middle of one: each ends, with an error from then on.
  std::atomic<int> steps = 0;
  std::thread killer([&] {
    while (steps < 20) std::this_thread::yield();
    kill(daemon.pid(), SIGKILL);
  });
  const absl::Time begin = absl::Now();
  absl::StatusOr<int> wrong = 0;
  for (; wrong.ok() && steps < 100000; ++steps) wrong = WrongRows(steps * 31);
  killer.join();
  EXPECT_FALSE(wrong.ok());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_TRUE(absl::IsUnavailable(wrong.status())) << wrong.status();
}

}  // namespace
}  // namespace kvtier::e2e
