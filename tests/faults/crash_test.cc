// A daemon without memory ends, and what was complete is there again.
//
// In a verb every allocation fails once, each in a process of its own: it must end by SIGABRT and
// say why. Then the next process takes over what the pool's folder holds. Rows whose backup was
// completed are there and right, and nothing is there that is not.

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/out_of_memory.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/session/node_fixture.h"
#include "server/session/wait.h"
#include "tests/faults/allocations.h"

namespace kvtier::faults {
namespace {

constexpr char kCache[] = "kv";
constexpr int32_t kBlockSize = 4;
constexpr int64_t kPoolBytes = int64_t{6} << 20;
constexpr Peer kPeer = {.pid = 1, .uid = 1000};
constexpr int kAttemptsMax = 5000;

CacheLayout Layout() {
  return SmallLayout{.top_k = 4, .hot_size = 8, .block_count = 8, .block_size = kBlockSize}.Make();
}

uint8_t ValueOf(int64_t tag) { return static_cast<uint8_t>(16 + tag); }

// A daemon without a server, and a worker of it.
class World {
 public:
  explicit World(const std::string& folder)
      : pool_(*HostPool::Create(
            {.size_bytes = kPoolBytes, .huge_pages = HugePages::kNever, .folder = folder},
            backend_.get())),
        node_(std::make_unique<Node>(NodeOptions{.version = "test"}, &clock_, backend_.get(),
                                     pool_.get())) {
    pool_->Start([](int64_t, int64_t) {});
    EXPECT_TRUE(pool_->WaitReady(absl::InfiniteFuture()).ok());
    const auto dropped = node_->AdoptCaches();
    EXPECT_TRUE(dropped.ok() && dropped->empty()) << dropped.status();
    // A file under its passing name was never anybody's.
    for (const std::string& what : pool_->folder()->dropped()) {
      EXPECT_NE(what.find(".new"), std::string::npos) << what;
    }
  }

  Node& node() { return *node_; }
  const std::string& session() const { return session_; }
  absl::Time Soon() const { return clock_.Now() + absl::Seconds(30); }

  // False: the test has failed.
  bool Attach(const std::string& cache = kCache) {
    session_ = node_->OpenSession("worker", kPeer, nullptr).value_or("");
    attached_ =
        node_->AttachCache(session_, cache, Layout(), "", Soon(),
                           {.retain = Retention{.blocks_max = 8, .duration = absl::Hours(1)}});
    EXPECT_TRUE(attached_.ok()) << attached_.status();
    if (!attached_.ok()) return false;
    memory_ = std::make_unique<WorkerMemory>(node_.get(), kPeer, *attached_);
    return true;
  }
  // Two blocks of "r" with the tags 1 and 2; the first row of each is backed up.
  void Fill() {
    EXPECT_TRUE(node_->AdmitRequest(session_, kCache, "r", 0, Soon()).ok());
    const auto assigned = node_->AssignBlocks(session_, kCache, "r", 2, {}, {}, Soon(), {1, 2});
    ASSERT_TRUE(assigned.ok()) << assigned.status();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(Backup(assigned->block_ids[i] * kBlockSize, ValueOf(i + 1)).ok());
    }
  }
  absl::Status Backup(int32_t slot, uint8_t value) {
    const GroupShape shape = ShapeOf(Layout(), 0);
    std::fill_n(memory_->HotRow(0, 0, shape.hot_size), 656, value);
    BackupCall call;
    call.cache = kCache;
    call.inline_rows = {{.request_id = "r", .slot = slot}};
    const auto completions = std::make_shared<Completions>();
    const auto ticket = node_->Backup(
        session_, call, [arrived = completions->Expect()](const OperationOutcome& outcome) {
          arrived(outcome.status);
        });
    return ticket.ok() ? completions->Wait(clock_, Soon()) : ticket.status();
  }
  absl::Status SwapIn(const std::string& request, std::vector<int32_t> slots,
                      std::vector<SwapInRowOutput>* rows) {
    SwapInCall call;
    call.cache = kCache;
    call.use_slots = true;
    call.inline_rows = {{.request_id = request, .topk = std::move(slots)}};
    const auto completions = std::make_shared<Completions>();
    const auto ticket = node_->SwapIn(
        session_, call, [rows, arrived = completions->Expect()](const OperationOutcome& outcome) {
          *rows = outcome.rows;
          arrived(outcome.status);
        });
    return ticket.ok() ? completions->Wait(clock_, Soon()) : ticket.status();
  }

  // How many blocks of Fill are kept; all that is kept must be right.
  int CheckKept() {
    if (!Attach()) return -1;
    const auto kept = node_->ListKeptBlocks(session_, kCache, 0, 100);
    EXPECT_TRUE(kept.ok()) << kept.status();
    EXPECT_TRUE(node_->AdmitRequest(session_, kCache, "again", 0, Soon()).ok());
    int found = 0;
    for (const KeptBlockInfo& block : *kept) {
      EXPECT_TRUE(node_
                      ->AssignBlocks(session_, kCache, "again", 0, {block.block_id},
                                     {block.generation}, Soon())
                      .ok());
      std::vector<SwapInRowOutput> rows;
      const int32_t slot = block.block_id * kBlockSize;
      EXPECT_TRUE(SwapIn("again", {slot}, &rows).ok());
      if (rows.empty()) return -1;
      const uint8_t byte = *memory_->HotRow(0, 0, rows[0].hot_indices[0]);
      EXPECT_EQ(byte, block.rows_backed == 0 ? 0 : ValueOf(block.tag)) << "tag " << block.tag;
      found += block.rows_backed > 0 && (block.tag == 1 || block.tag == 2);
    }
    return found;
  }

 private:
  const SystemClock clock_;
  const std::unique_ptr<DeviceBackend> backend_ = *MakeCpuBackend({});
  const std::unique_ptr<HostPool> pool_;
  const std::unique_ptr<Node> node_;
  std::string session_;
  absl::StatusOr<AttachResult> attached_ = absl::UnknownError("");
  std::unique_ptr<WorkerMemory> memory_;
};

// Runs `body` in a process; returns how that ended, and what it wrote.
struct Ending {
  int status = 0;
  std::string text;
};
Ending RunInProcess(const std::function<int()>& body) {
  const int log = memfd_create("stderr", MFD_CLOEXEC);
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit no_core = {};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(log, STDERR_FILENO);
    dup2(log, STDOUT_FILENO);
    // What is thrown ends here: the process must not go on as the test.
    const auto run = [&]() noexcept { return body(); };
    _exit(run());
  }
  Ending ending;
  EXPECT_EQ(waitpid(pid, &ending.status, 0), pid);
  char text[4096];
  ending.text.assign(text, std::max<ssize_t>(pread(log, text, sizeof(text), 0), 0));
  close(log);
  return ending;
}

struct Verb {
  const char* name;
  std::function<void(World&)> run;
  bool keeps = true;  // what was complete before
};

std::vector<Verb> Verbs() {
  return {
      {"OpenSession", [](World& w) { (void)w.node().OpenSession("other", kPeer, nullptr); }},
      {"AttachCache",
       [](World& w) {
         const std::string other = w.node().OpenSession("other", kPeer, nullptr).value_or("");
         (void)w.node().AttachCache(other, kCache, Layout(), "", w.Soon());
       }},
      {"CreateCache",
       [](World& w) {
         (void)w.node().AttachCache(w.session(), "another", Layout(), "", w.Soon());
       }},
      {"AdmitRequest",
       [](World& w) { (void)w.node().AdmitRequest(w.session(), kCache, "s", 1, w.Soon()); }},
      {"AssignBlocks",
       [](World& w) {
         (void)w.node().AssignBlocks(w.session(), kCache, "r", 2, {}, {}, w.Soon(), {3, 4});
       }},
      {"Backup", [](World& w) { (void)w.Backup(1, ValueOf(1)); }},
      {"SwapIn",
       [](World& w) {
         std::vector<SwapInRowOutput> rows;
         (void)w.SwapIn("r", {0, 4}, &rows);
       }},
      {"InvalidateBlocks",
       [](World& w) { (void)w.node().InvalidateBlocks(w.session(), kCache, {0}, w.Soon()); }},
      {"Snapshot", [](World& w) { (void)w.node().Snapshot(""); }},
      {"FreeBlocks",
       [](World& w) { (void)w.node().FreeBlocks(w.session(), kCache, "r", {0}, w.Soon()); }, false},
      {"ReleaseRequest",
       [](World& w) { (void)w.node().ReleaseRequest(w.session(), kCache, "r", w.Soon()); }, false},
      {"DetachCache", [](World& w) { (void)w.node().DetachCache(w.session(), kCache, w.Soon()); }},
      {"EvictSession", [](World& w) { (void)w.node().EvictSession(w.session(), "test"); }},
      {"Drain", [](World& w) { w.node().Drain("test"); }},
      {"CloseAllSessions", [](World& w) { (void)w.node().CloseAllSessions("test", w.Soon()); }},
  };
}

class CrashTest : public ::testing::TestWithParam<Verb> {
 protected:
  CrashTest() {
    char name[] = "/dev/shm/kvtier-test-XXXXXX";
    parent_ = mkdtemp(name);
  }
  ~CrashTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
  }

  // True: an allocation failed, and the process ended as it must.
  bool Crash(const std::string& folder, int nth) const {
    const Ending ending = RunInProcess([&] {
      AbortWhenOutOfMemory();
      World world(folder);
      if (!world.Attach()) return 1;
      world.Fill();
      FailAllocation(nth);
      GetParam().run(world);
      FailAllocation(0);
      return HasFailure() ? 1 : 0;
    });
    if (WIFEXITED(ending.status)) {
      EXPECT_EQ(WEXITSTATUS(ending.status), 0) << ending.text;
      return false;
    }
    EXPECT_EQ(WTERMSIG(ending.status), SIGABRT) << ending.text;
    EXPECT_NE(ending.text.find("event=out_of_memory"), std::string::npos) << ending.text;
    return true;
  }

  std::string parent_;
};

TEST_P(CrashTest, WhatWasCompleteIsThereAgain) {
  int nth = 1;
  for (bool crashed = true; crashed && !HasFailure(); ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    const std::string folder = parent_ + "/" + std::to_string(nth);
    crashed = Crash(folder, nth);
    const Ending next = RunInProcess([&] {
      World world(folder);
      const int kept = world.CheckKept();
      EXPECT_EQ(kept, GetParam().keeps ? 2 : kept);
      return HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(next.status, 0) << next.text;
    std::filesystem::remove_all(folder);
    ASSERT_LT(nth, kAttemptsMax);
  }
  EXPECT_GT(nth, 2) << "it allocated nothing";
  RecordProperty("faults", nth - 2);
}

INSTANTIATE_TEST_SUITE_P(Verbs, CrashTest, ::testing::ValuesIn(Verbs()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier::faults
