// A whole node's load, and at the same time every kind of hostile peer, against a real daemon.
//
//   load [--seconds=600] [--warmup_seconds=60] [--workers=64] [--processes=8]
//        [--requests_per_minute=10000] [--hostile=all|none|KIND,KIND] [--json=FILE] [--commit=TEXT]
//                                             needs server/kvtierd in the current folder
//
// Workers have a session and a thread each; a process has workers / processes of them. They share
// workers / processes caches, so that each cache has sessions of all processes. Requests start at
// their time, whether the daemon is fast or not: a late start is noted. A request is admitted with
// its whole length declared, gets blocks, is prefilled, decodes four steps (in process, by unary
// calls, or on a RunSteps call, in turn), has a block written anew and invalidated, steps once
// more, and is released; every swapped-in row is compared in all its bytes. A session ends and is
// opened anew after 100 requests.
//
// Everything runs for the time of warm-up first. Then the verdict is, and the exit status 1 for
// any: errors or wrong rows of a worker; fewer requests than asked for, or one that began later
// than kLateMsMax; liveness later than 2 s; anonymous memory that grows by more than kSlopeMax
// (without hostile peers), or has grown by more than kHostileGrowthMax in the end; descriptors and
// threads that are not back at what they were between warm-up and load; blocks that are not free.
//
// Tables, and JSON with all figures.
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/benchmark/report.h"
#include "tests/load/children.h"
#include "tests/load/hostile.h"
#include "tests/load/load_run.h"
#include "tests/load/worker.h"

namespace kvtier::load {
namespace {

using testing::BenchmarkFlags;

absl::Time TimeOf(BenchmarkFlags* flags, const std::string& name) {
  return absl::FromUnixMillis(std::atoll(flags->Text(name, "0").c_str()));
}

// The workers of one process; see LoadRun::StartWorkers.
int BeWorkers(BenchmarkFlags flags) {
  const int32_t first = flags.Number("first", 0), count = flags.Number("count", 1),
                workers = flags.Number("workers", 1), caches = flags.Number("caches", 1);
  const std::string socket = flags.Text("socket", ""), result = flags.Text("result", "");
  const absl::Duration period = absl::Microseconds(flags.Number("period_us", 1000000));
  const absl::Time begin = TimeOf(&flags, "begin"), end = TimeOf(&flags, "end");
  flags.RequireNoOthers();
  CallTimes times;
  std::vector<WorkerResult> results(count);
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const int32_t number = first + i;
      results[i] = Worker({.socket_path = socket,
                           .number = number,
                           .cache_count = caches,
                           .period = period,
                           .begin = begin + period * number / workers,
                           .end = end},
                          &times)
                       .Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  WorkerResult sum;
  for (const WorkerResult& one : results) sum.Add(one);
  WriteFindings(result, FindingsOf(sum));
  return times.WriteTo(result + ".times").ok() ? 0 : 1;
}

// One hostile peer.
int BeHostilePeer(BenchmarkFlags flags) {
  const HostileOptions options = {.kind = flags.Text("kind", ""),
                                  .address = flags.Text("address", ""),
                                  .count = flags.Number("count", 1),
                                  .end = TimeOf(&flags, "end")};
  const std::string result = flags.Text("result", "");
  flags.RequireNoOthers();
  const absl::StatusOr<HostileResult> did = BeHostile(options);
  Findings findings = did.ok() ? FindingsOf(*did) : Findings();
  if (!did.ok()) findings["error"] = did.status().ToString();
  WriteFindings(result, findings);
  return did.ok() ? 0 : 1;
}

int Main(BenchmarkFlags flags) {
  const std::string role = flags.Text("role", "");
  if (role == "workers") return BeWorkers(std::move(flags));
  if (role == "hostile") return BeHostilePeer(std::move(flags));
  LoadOptions options;
  options.load = absl::Seconds(flags.Number("seconds", 600));
  options.warm_up = absl::Seconds(flags.Number("warmup_seconds", 60));
  options.workers = flags.Number("workers", options.workers);
  options.processes = flags.Number("processes", options.processes);
  options.requests_per_minute = flags.Number("requests_per_minute", options.requests_per_minute);
  options.json = flags.Text("json", "");
  options.commit = flags.Text("commit", "");
  const std::string hostile = flags.Text("hostile", "all");
  flags.RequireNoOthers();
  if (hostile == "all") {
    options.hostile = HostileKinds();
  } else if (hostile != "none") {
    options.hostile = absl::StrSplit(hostile, ',');
  }
  return LoadRun(options).Run() ? 0 : 1;
}

}  // namespace
}  // namespace kvtier::load

int main(int argc, char** argv) {
  return kvtier::load::Main(kvtier::testing::BenchmarkFlags(argc, argv));
}
