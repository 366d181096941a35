// What a restart costs that keeps the pool (--pool_path), and what keeping it costs meanwhile.
//
//   restart_benchmark [--backend=cpu] [--gib=1,4,8] [--blocks=1024,65536,1048576]
//                     [--caches=1,16,64] [--starts=3] [--calls=2000] [--folder=/dev/shm]
//                     [--json=FILE] [--commit=TEXT]        needs server/kvtierd in the current
//                     folder
//
// starts   From exec until the daemon takes connections, until it is ready, and how long its first
//          worker and a second one take to attach: with a pool of its own memory, with a new
//          folder, and with the folder of a daemon that was killed, whose one cache fills nine
//          tenths of the pool, every row backed up. A GPU registers the pool at the first attach.
// keeping  The same start of 1 GiB over many small blocks and over many caches: their records are
//          all that there is to read, as there is no journal. Then one worker lists all kept blocks
//          and takes them up.
// writes   Calls with and without a folder, by turns: what records cost while all goes well.
//
// Rows hold their slot number, and are compared after each restart; "wrong" counts those that
// differ, and blocks that are not there. Medians. Milliseconds; microseconds of single calls.
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cache.h"
#include "client/request.h"
#include "tests/benchmark/report.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/restart_worker.h"

namespace kvtier::e2e {
namespace {

using testing::JsonObject;
using testing::Percentile;

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr int32_t kRowBytes = 656, kBlockSize = 64;
constexpr int32_t kSmallRowBytes = 16;  // in blocks of one row

double Median(std::vector<double> values) { return Percentile(std::move(values), 0.5); }

bool TakesConnections(const std::string& path) {
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const bool taken =
      connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(connection);
  return taken;
}

class RestartBenchmark {
 public:
  explicit RestartBenchmark(testing::BenchmarkFlags flags)
      : backend_(flags.Text("backend", "cpu")),
        parent_(flags.Text("folder", "/dev/shm")),
        json_(flags.Text("json", "")),
        commit_(flags.Text("commit", "")),
        gibibytes_(flags.Numbers("gib", {1, 4, 8})),
        blocks_(flags.Numbers("blocks", {1024, 65536, 1 << 20})),
        caches_(flags.Numbers("caches", {1, 16, 64})),
        starts_(flags.Number("starts", 3)),
        calls_(flags.Number("calls", 2000)) {
    flags.RequireNoOthers();
  }

  int Run() {
    TimeStarts();
    TimeKeeping();
    TimeWrites();
    if (!json_.empty()) {
      testing::WriteText(json_, testing::JsonList(results_) + "\n");
      testing::WriteText(testing::MachinePath(json_), testing::DescribeMachine().ToString() + "\n");
    }
    std::printf("\nwrong rows: %ld\n", static_cast<long>(wrong_));
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  // A folder of its own, gone with this object.
  class Folder {
   public:
    explicit Folder(const std::string& parent) : path_(parent + "/kvtier-restart-XXXXXX") {
      if (mkdtemp(path_.data()) == nullptr) Must(absl::NotFoundError(path_), "folder");
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
    std::string pool() const { return path_ + "/pool"; }
    int64_t BytesBeside(const char* left_out) const {
      int64_t bytes = 0;
      for (const auto& entry : std::filesystem::directory_iterator(pool())) {
        if (entry.path().filename() != left_out) {
          bytes += static_cast<int64_t>(entry.file_size());
        }
      }
      return bytes;
    }

   private:
    std::string path_;
  };

  struct Start {
    std::vector<double> listening, ready, first_attach, second_attach;
    int64_t wrong = 0;
  };

  std::unique_ptr<Daemon> MakeDaemon(int64_t pool_bytes, const std::string& pool_path) const {
    DaemonOptions options = {.pool_bytes = pool_bytes, .backend = backend_};
    if (!pool_path.empty()) options.flags.push_back("--pool_path=" + pool_path);
    return std::make_unique<Daemon>(std::move(options));
  }

  // `daemon` was started at `begin`.
  static void WaitForStart(Daemon& daemon, BenchClock::time_point begin, Start* start) {
    while (!TakesConnections(daemon.socket_path())) sched_yield();
    start->listening.push_back(MillisecondsSince(begin));
    const auto is_ready = [&] { return daemon.Stats().pool().state() == v1::POOL_STATE_READY; };
    while (!is_ready()) sched_yield();
    start->ready.push_back(MillisecondsSince(begin));
  }

  // Ends with the daemon's death, while both workers are attached and hold what they took up.
  static void TimeAttachments(Daemon& daemon, const v1::CacheLayout& layout, Start* start,
                              bool adopted) {
    BenchClock::time_point begin = BenchClock::now();
    Worker first = Attach(daemon, "kv", layout);
    start->first_attach.push_back(MillisecondsSince(begin));
    begin = BenchClock::now();
    const Worker second = Attach(daemon, "kv", layout);
    start->second_attach.push_back(MillisecondsSince(begin));
    Kept kept;
    if (adopted) kept = TakeUpAll(first);
    start->wrong += kept.wrong;
    daemon.Kill();
  }

  void TimeStarts() {
    std::printf(
        "\n| pool GiB | pool | exec to listening ms | to ready ms | first attach ms | "
        "second attach ms |\n| --- | --- | --- | --- | --- | --- |\n");
    for (const int32_t gib : gibibytes_) {
      const int64_t bytes = gib * kGibibyte;
      const v1::CacheLayout layout = LayoutOf(
          kRowBytes, kBlockSize, static_cast<int32_t>(bytes / 10 * 9 / (kRowBytes * kBlockSize)));
      Start own, fresh, adopted;
      for (int i = 0; i < starts_; ++i) {
        for (Start* start : {&own, &fresh}) {
          const Folder folder(parent_);
          const BenchClock::time_point begin = BenchClock::now();
          const auto daemon = MakeDaemon(bytes, start == &own ? "" : folder.pool());
          WaitForStart(*daemon, begin, start);
          TimeAttachments(*daemon, layout, start, /*adopted=*/false);
        }
      }
      const Folder folder(parent_);
      const auto daemon = MakeDaemon(bytes, folder.pool());
      if (!daemon->WaitUntilReady()) Must(absl::UnavailableError("not ready"), "start");
      {
        Worker worker = Attach(*daemon, "kv", layout);
        const client::Request request = FillAll(worker);
        daemon->Kill();
      }
      for (int i = 0; i < starts_; ++i) {
        const BenchClock::time_point begin = BenchClock::now();
        daemon->Start();
        WaitForStart(*daemon, begin, &adopted);
        TimeAttachments(*daemon, layout, &adopted, /*adopted=*/true);
      }
      ReportStart(gib, "its own memory", own);
      ReportStart(gib, "new folder", fresh);
      ReportStart(gib, "adopted", adopted);
    }
  }

  void ReportStart(int32_t gib, const char* kind, const Start& start) {
    const double listening = Median(start.listening), ready = Median(start.ready),
                 first = Median(start.first_attach), second = Median(start.second_attach);
    std::printf("| %d | %s | %.0f | %.0f | %.1f | %.1f |\n", gib, kind, listening, ready, first,
                second);
    std::fflush(stdout);
    wrong_ += start.wrong;
    results_.push_back(JsonObject()
                           .Add("benchmark", std::string("start"))
                           .Add("gib", gib)
                           .Add("pool", std::string(kind))
                           .Add("listening_ms", listening)
                           .Add("ready_ms", ready)
                           .Add("first_attach_ms", first)
                           .Add("second_attach_ms", second)
                           .Add("wrong", start.wrong)
                           .Add("commit", commit_)
                           .ToString());
  }

  // Restarts over `caches` caches of `blocks` blocks of one small row each.
  void TimeKept(int32_t caches, int32_t blocks) {
    const Folder folder(parent_);
    const auto daemon = MakeDaemon(kGibibyte, folder.pool());
    const v1::CacheLayout layout = LayoutOf(kSmallRowBytes, 1, blocks);
    if (!daemon->WaitUntilReady()) Must(absl::UnavailableError("not ready"), "start");
    {
      std::vector<Worker> workers;
      std::vector<client::Request> requests;
      for (int32_t i = 0; i < caches; ++i) {
        workers.push_back(Attach(*daemon, absl::StrCat("kv-", i), layout));
        requests.push_back(FillAll(workers.back()));
      }
      daemon->Kill();
    }
    const int64_t record_bytes = folder.BytesBeside("rows");
    Start start;
    std::vector<double> list_ms, take_up_ms;
    for (int i = 0; i < starts_; ++i) {
      const BenchClock::time_point begin = BenchClock::now();
      daemon->Start();
      WaitForStart(*daemon, begin, &start);
      Worker worker = Attach(*daemon, "kv-0", layout);
      const Kept kept = TakeUpAll(worker);
      list_ms.push_back(kept.list_ms);
      take_up_ms.push_back(kept.take_up_ms);
      wrong_ += kept.wrong;
      daemon->Kill();
    }
    std::printf("| %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |\n", caches, blocks,
                static_cast<double>(record_bytes) / (1 << 20), Median(start.listening),
                Median(start.ready), Median(list_ms), Median(take_up_ms));
    std::fflush(stdout);
    results_.push_back(JsonObject()
                           .Add("benchmark", std::string("keeping"))
                           .Add("caches", caches)
                           .Add("blocks", blocks)
                           .Add("record_bytes", record_bytes)
                           .Add("listening_ms", Median(start.listening))
                           .Add("ready_ms", Median(start.ready))
                           .Add("list_ms", Median(list_ms))
                           .Add("take_up_ms", Median(take_up_ms))
                           .Add("commit", commit_)
                           .ToString());
  }

  void TimeKeeping() {
    std::printf(
        "\n| caches | blocks each | records MiB | exec to listening ms | to ready ms | "
        "list kept blocks of one ms | take them up ms |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (const int32_t blocks : blocks_) TimeKept(1, blocks);
    for (const int32_t caches : caches_) TimeKept(caches, 1024);
  }

  void TimeWrites();

  const std::string backend_, parent_, json_, commit_;
  const std::vector<int32_t> gibibytes_, blocks_, caches_;
  const int32_t starts_, calls_;
  int64_t wrong_ = 0;
  std::vector<std::string> results_;
};

// A daemon with a worker on it, and one kind of call after the other.
struct Writer {
  explicit Writer(std::unique_ptr<Daemon> its_daemon)
      : daemon(std::move(its_daemon)),
        worker(Attach(*daemon, "kv", LayoutOf(kRowBytes, kBlockSize, 4096))),
        request(Must(worker.cache.Admit("r"), "admit")) {
    Must(request.AssignBlocks(1).status(), "assign");
    for (int32_t i = 0; i < kBlockSize; ++i) slots.push_back(request.SlotOf(i));
  }
  // Assigns a block and frees it again.
  void Assign() {
    const client::AssignedBlocks blocks = Must(request.AssignBlocks(1), "assign");
    Must(request.FreeBlocks(blocks.block_ids).status(), "free");
  }
  // Says of the rows of a block that they are backed up.
  void Mark() { Must(worker.cache.MarkBacked(0, slots), "mark"); }
  // Makes a cache, and ends it.
  void Make() { (void)Attach(*daemon, "another", LayoutOf(kRowBytes, kBlockSize, 64)); }

  std::unique_ptr<Daemon> daemon;
  Worker worker;
  client::Request request;
  std::vector<int32_t> slots;
};

void RestartBenchmark::TimeWrites() {
  const Folder folder(parent_);
  Writer plain(MakeDaemon(kGibibyte, "")), kept(MakeDaemon(kGibibyte, folder.pool()));
  std::printf(
      "\n| call | calls | without a folder, p50 us | p99 us | with one, p50 us | p99 us |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  const std::vector<std::pair<const char*, void (Writer::*)()>> kinds = {
      {"assign a block and free it", &Writer::Assign},
      {"mark 64 rows as backed up", &Writer::Mark},
      {"make a cache and end it", &Writer::Make}};
  for (const auto& [name, call] : kinds) {
    const int32_t calls = call == &Writer::Make ? std::max(20, calls_ / 20) : calls_;
    std::vector<double> without, with;
    for (int32_t i = 0; i < calls; ++i) {
      for (auto [writer, times] : {std::pair(&plain, &without), std::pair(&kept, &with)}) {
        const BenchClock::time_point begin = BenchClock::now();
        (writer->*call)();
        times->push_back(1000 * MillisecondsSince(begin));
      }
    }
    std::printf("| %s | %d | %.1f | %.1f | %.1f | %.1f |\n", name, calls, Percentile(without, 0.5),
                Percentile(without, 0.99), Percentile(with, 0.5), Percentile(with, 0.99));
    std::fflush(stdout);
    results_.push_back(JsonObject()
                           .Add("benchmark", std::string("writes"))
                           .Add("call", std::string(name))
                           .Add("calls", calls)
                           .Add("plain_p50_us", Percentile(without, 0.5))
                           .Add("plain_p99_us", Percentile(without, 0.99))
                           .Add("kept_p50_us", Percentile(with, 0.5))
                           .Add("kept_p99_us", Percentile(with, 0.99))
                           .Add("commit", commit_)
                           .ToString());
  }
}

}  // namespace
}  // namespace kvtier::e2e

int main(int argc, char** argv) {
  return kvtier::e2e::RestartBenchmark(kvtier::testing::BenchmarkFlags(argc, argv)).Run();
}
