// What a call to the daemon costs beside a bare gRPC server that answers with the same bytes.
//
//   rpc_benchmark [--backend=cpu] [--workers=1,16,64] [--calls=20000] [--quick] [--json=FILE]
//                 [--commit=TEXT]        needs server/kvtierd in the current folder
//
// Both servers run in processes of their own, on the same gRPC library, over Unix sockets, with
// handlers on the callback API; messages are the same. So the bare server is the floor of a call,
// and the ratio is what sessions, checks, the ledger and threads of ours add. Each worker is a
// thread with a connection and a session of its own, and makes one call after the other without a
// pause; the two servers take turns, five times. Context switches of the servers are counted over
// all calls of a row's group: they do not depend on what else the machine does. Afterwards 16
// sessions of one cache assign, invalidate and free 512 blocks at a time, all at once. Microseconds
// of a call.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cache.h"
#include "client/session.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "tests/benchmark/report.h"
#include "tests/e2e/context_switches.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/echo_server.h"

namespace kvtier::e2e {
namespace {

using testing::JsonObject;
using testing::Percentile;
using Clock = std::chrono::steady_clock;

constexpr int32_t kManyBlocks = 512, kManySessions = 16;
constexpr int32_t kBlocks = 2 * kManyBlocks * kManySessions, kRequestsMax = 8;
constexpr int32_t kTurns = 5;
constexpr char kCache[] = "kv";

void Require(bool holds, absl::string_view what, const std::string& why) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", std::string(what).c_str(), why.c_str());
  std::exit(1);
}

// One connection to a server.
struct Stubs {
  explicit Stubs(const std::string& socket_path) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("unix:" + socket_path,
                                                   grpc::InsecureChannelCredentials(), arguments);
    admin = v1::KvTierAdmin::NewStub(channel);
    kv_tier = v1::KvTier::NewStub(channel);
  }
  std::unique_ptr<v1::KvTierAdmin::Stub> admin;
  std::unique_ptr<v1::KvTier::Stub> kv_tier;
};

template <typename Message>
void SetNames(const std::string& session_id, Message* message) {
  message->set_session_id(session_id);
  message->set_cache(kCache);
}

v1::CacheLayout Layout() {
  v1::CacheLayout layout;
  layout.set_block_count(kBlocks);
  layout.set_max_requests(kRequestsMax);
  v1::LayerGroupLayout* const group = layout.add_groups();
  group->set_top_k(2048);
  group->set_hot_size(4096);
  v1::LayerLayout* const layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
  layer->set_row_bytes(64);  // no bytes of rows are moved here
  return layout;
}

// A session with a cache and a request, and connections for the calls that are timed.
class Worker {
 public:
  Worker(const Daemon& daemon, int32_t number) : daemon_(daemon.socket_path()) {
    auto session = daemon.Open(absl::StrCat("worker-", number));
    Require(session.ok(), "OpenSession", session.status().ToString());
    session_ = std::make_unique<client::Session>(*std::move(session));
    auto cache = client::Cache::Attach(
        *session_, {.cache = kCache, .layout = Layout(), .wait_for_pool = absl::Minutes(1)});
    Require(cache.ok(), "AttachCache", cache.status().ToString());
    cache_ = std::make_unique<client::Cache>(*std::move(cache));
    auto request = cache_->Admit("r", /*reserve_blocks=*/0);
    Require(request.ok(), "AdmitRequest", request.status().ToString());
    request_ = std::make_unique<client::Request>(*std::move(request));
    SetNames(session_->id(), &assign_);
    assign_.set_request_id("r");
    SetNames(session_->id(), &free_);
    free_.set_request_id("r");
    SetNames(session_->id(), &invalidate_);
    stats_.set_cache(kCache);
  }

  void ConnectToEcho(const std::string& socket_path) {
    echo_ = std::make_unique<Stubs>(socket_path);
  }

  // Each returns microseconds, and leaves its answer in `answers`.
  double GetStats(bool of_daemon) {
    return Time("GetStats", [&](grpc::ClientContext* context) {
      return stubs(of_daemon).admin->GetStats(context, stats_, &answers.stats);
    });
  }
  double Assign(bool of_daemon, int32_t count) {
    assign_.set_count(count);
    return Time("AssignBlocks", [&](grpc::ClientContext* context) {
      return stubs(of_daemon).kv_tier->AssignBlocks(context, assign_, &answers.assigned);
    });
  }
  double Invalidate(bool of_daemon) {
    *invalidate_.mutable_block_ids() = answers.assigned.block_ids();
    return Time("InvalidateBlocks", [&](grpc::ClientContext* context) {
      return stubs(of_daemon).kv_tier->InvalidateBlocks(context, invalidate_, &answers.invalidated);
    });
  }
  double Free(bool of_daemon) {
    *free_.mutable_block_ids() = answers.assigned.block_ids();
    return Time("FreeBlocks", [&](grpc::ClientContext* context) {
      return stubs(of_daemon).kv_tier->FreeBlocks(context, free_, &answers.freed);
    });
  }

  EchoAnswers answers;

 private:
  const Stubs& stubs(bool of_daemon) const { return of_daemon ? daemon_ : *echo_; }

  template <typename Call>
  static double Time(const char* name, const Call& call) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const Clock::time_point begin = Clock::now();
    const grpc::Status status = call(&context);
    const Clock::time_point end = Clock::now();
    Require(status.ok(), name, status.error_message());
    return std::chrono::duration<double, std::micro>(end - begin).count();
  }

  const Stubs daemon_;
  std::unique_ptr<Stubs> echo_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Cache> cache_;
  std::unique_ptr<client::Request> request_;
  v1::GetStatsRequest stats_;
  v1::AssignBlocksRequest assign_;
  v1::FreeBlocksRequest free_;
  v1::InvalidateBlocksRequest invalidate_;
};

using Workers = std::vector<std::unique_ptr<Worker>>;
// Makes calls of one kind or several, and appends the time of each to times[kind].
using Calls = std::function<void(Worker* worker, std::vector<std::vector<double>>* times)>;

// All workers at once, each `count` times. Returns the times of each kind of call.
std::vector<std::vector<double>> RunAll(const Workers& workers, int32_t count, size_t kinds,
                                        const Calls& calls) {
  std::vector<std::vector<std::vector<double>>> of_worker(workers.size(),
                                                          std::vector<std::vector<double>>(kinds));
  std::latch start(static_cast<ptrdiff_t>(workers.size()));
  std::vector<std::thread> threads;
  for (size_t w = 0; w < workers.size(); ++w) {
    threads.emplace_back([&, w] {
      start.arrive_and_wait();
      for (int32_t i = 0; i < count; ++i) calls(workers[w].get(), &of_worker[w]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::vector<double>> all(kinds);
  for (const auto& times : of_worker) {
    for (size_t k = 0; k < kinds; ++k)
      all[k].insert(all[k].end(), times[k].begin(), times[k].end());
  }
  return all;
}

struct Summary {
  explicit Summary(const std::vector<double>& times)
      : p50(Percentile(times, 0.5)),
        p99(Percentile(times, 0.99)),
        p999(Percentile(times, 0.999)),
        count(std::ssize(times)) {}
  double p50, p99, p999;
  int64_t count;

  void AddTo(const std::string& prefix, JsonObject* object) const {
    object->Add(prefix + "p50_us", p50).Add(prefix + "p99_us", p99).Add(prefix + "p999_us", p999);
  }
};

class RpcBenchmark {
 public:
  explicit RpcBenchmark(testing::BenchmarkFlags flags)
      : workers_of_(flags.Numbers("workers", {1, 16, 64})),
        calls_(flags.Number("calls", flags.Has("quick") ? 2000 : 20000)),
        backend_(flags.Text("backend", "cpu")),
        json_(flags.Text("json", "")),
        commit_(flags.Text("commit", "")),
        daemon_({.pool_bytes = int64_t{1} << 30, .backend = backend_}) {
    flags.RequireNoOthers();
    char name[] = "/tmp/kvtier-rpc-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~RpcBenchmark() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void Run() {
    testing::WriteText(
        testing::MachinePath(json_),
        testing::DescribeMachine().Add("commit", commit_).Add("backend", backend_).ToString());
    std::printf(
        "| call | workers | bare p50 us | p99 | p99.9 | daemon p50 us | p99 | p99.9 | "
        "p50 ratio | p99 ratio | bare switches a call | daemon |\n");
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const int32_t count : workers_of_) {
      AddWorkersUpTo(count);
      CompareWithEcho(count);
    }
    AddWorkersUpTo(kManySessions);
    workers_.resize(kManySessions);
    TimeManyBlocks();
    workers_.clear();
    testing::WriteText(json_, testing::JsonList(results_));
  }

 private:
  void AddWorkersUpTo(int32_t count) {
    while (std::ssize(workers_) < count) {
      workers_.push_back(std::make_unique<Worker>(daemon_, static_cast<int32_t>(workers_.size())));
    }
  }

  void CompareWithEcho(int32_t count) {
    Worker& first = *workers_.front();
    first.GetStats(true);
    first.Assign(true, 1);
    first.Invalidate(true);
    first.Free(true);
    const EchoProcess echo(folder_, first.answers);
    for (const auto& worker : workers_) worker->ConnectToEcho(echo.socket_path());
    const pid_t servers[2] = {echo.pid(), daemon_.pid()};
    Compare(count, servers, {"GetStats"}, [](bool of_daemon) -> Calls {
      return [of_daemon](Worker* worker, auto* times) {
        times->at(0).push_back(worker->GetStats(of_daemon));
      };
    });
    const std::vector<std::string> names = {"AssignBlocks", "InvalidateBlocks", "FreeBlocks"};
    Compare(count, servers, names, [](bool of_daemon) -> Calls {
      return [of_daemon](Worker* worker, auto* times) {
        times->at(0).push_back(worker->Assign(of_daemon, 1));
        times->at(1).push_back(worker->Invalidate(of_daemon));
        times->at(2).push_back(worker->Free(of_daemon));
      };
    });
  }

  void Compare(int32_t count, const pid_t (&servers)[2], const std::vector<std::string>& names,
               const std::function<Calls(bool of_daemon)>& calls_of) {
    const int32_t calls_of_worker =
        std::max(1, calls_ / count / kTurns / static_cast<int32_t>(names.size()));
    std::vector<std::vector<double>> times[2] = {std::vector<std::vector<double>>(names.size()),
                                                 std::vector<std::vector<double>>(names.size())};
    int64_t switches[2] = {};
    for (int32_t turn = -1; turn < kTurns; ++turn) {
      for (const bool of_daemon : {false, true}) {
        // The turn before the first warms up.
        const int64_t before = ContextSwitchesOf(servers[of_daemon]);
        const auto turn_times =
            RunAll(workers_, turn < 0 ? std::min(20, calls_of_worker) : calls_of_worker,
                   names.size(), calls_of(of_daemon));
        if (turn >= 0) switches[of_daemon] += ContextSwitchesOf(servers[of_daemon]) - before;
        for (size_t k = 0; turn >= 0 && k < names.size(); ++k) {
          auto& all = times[of_daemon][k];
          all.insert(all.end(), turn_times[k].begin(), turn_times[k].end());
        }
      }
    }
    const auto calls = static_cast<double>(names.size() * times[0][0].size());
    for (size_t k = 0; k < names.size(); ++k) {
      const double switches_a_call[2] = {static_cast<double>(switches[0]) / calls,
                                         static_cast<double>(switches[1]) / calls};
      ReportRatio(names[k], count, Summary(times[0][k]), Summary(times[1][k]), switches_a_call);
    }
  }

  void ReportRatio(const std::string& call, int32_t count, const Summary& bare,
                   const Summary& daemon, const double (&switches)[2]) {
    std::printf(
        "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.1f | %.1f |\n",
        call.c_str(), count, bare.p50, bare.p99, bare.p999, daemon.p50, daemon.p99, daemon.p999,
        daemon.p50 / bare.p50, daemon.p99 / bare.p99, switches[0], switches[1]);
    std::fflush(stdout);
    JsonObject result;
    result.Add("benchmark", std::string("unary")).Add("call", call).Add("workers", count);
    bare.AddTo("bare_", &result);
    daemon.AddTo("", &result);
    result.Add("bare_switches", switches[0]).Add("switches", switches[1]);
    result.Add("ratio_p50", daemon.p50 / bare.p50).Add("ratio_p99", daemon.p99 / bare.p99);
    results_.push_back(result.Add("samples", daemon.count).Add("commit", commit_).ToString());
  }

  void TimeManyBlocks() {
    const int32_t rounds = std::max(20, calls_ / kManySessions / 10);
    const auto times = RunAll(workers_, rounds, 4, [](Worker* worker, auto* all) {
      const double assign = worker->Assign(true, kManyBlocks);
      const double invalidate = worker->Invalidate(true);
      all->at(0).push_back(assign);
      all->at(1).push_back(invalidate);
      all->at(2).push_back(assign + invalidate);
      all->at(3).push_back(worker->Free(true));
    });
    std::printf("\n%d sessions at once, %d blocks a call\n", kManySessions, kManyBlocks);
    std::printf("| call | p50 us | p99 us | p99.9 us |\n| --- | --- | --- | --- |\n");
    const char* const names[] = {"AssignBlocks", "InvalidateBlocks", "assign + invalidate",
                                 "FreeBlocks"};
    for (size_t k = 0; k < times.size(); ++k) {
      const Summary summary(times[k]);
      std::printf("| %s | %.0f | %.0f | %.0f |\n", names[k], summary.p50, summary.p99,
                  summary.p999);
      JsonObject result;
      result.Add("benchmark", std::string("many_blocks"))
          .Add("call", std::string(names[k]))
          .Add("workers", kManySessions)
          .Add("blocks", kManyBlocks);
      summary.AddTo("", &result);
      results_.push_back(result.Add("samples", summary.count).Add("commit", commit_).ToString());
    }
  }

  const std::vector<int32_t> workers_of_;
  const int32_t calls_;
  const std::string backend_, json_, commit_;
  Daemon daemon_;
  std::string folder_;
  Workers workers_;
  std::vector<std::string> results_;
};

int Main(testing::BenchmarkFlags flags) {
  if (const std::string socket = flags.Text("echo", ""); !socket.empty()) {
    std::ifstream file(flags.Text("answers", ""), std::ios::binary);
    ServeEcho(socket, EchoAnswers::Parse(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  RpcBenchmark(std::move(flags)).Run();
  return 0;
}

}  // namespace
}  // namespace kvtier::e2e

int main(int argc, char** argv) {
  return kvtier::e2e::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
