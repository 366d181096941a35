#include "tests/load/load_run.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "tests/load/pace.h"

namespace kvtier::load {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);
// Sessions are taken back within a second; silent peers are cut off within ten.
constexpr absl::Duration kSettleMax = absl::Seconds(30);

// Of the load, before its memory is looked at. All sessions open in the first moments; and each of
// a hundred threads keeps some freed blocks of each size for itself, which takes minutes to come to
// what its work needs, and does not go on.
constexpr double kSettlingShare = 0.5;

std::string NewFolder() {
  char name[] = "/tmp/kvtier-load-XXXXXX";
  return mkdtemp(name);
}

// How many of a kind there are at a time, and where.
struct HostileShare {
  const char* kind;
  const char* where;  // "unix", "tcp", "fd"
  int32_t count;
};
constexpr HostileShare kShares[] = {
    {"silent", "unix", 10000},    {"silent", "tcp", 10000},     {"silent", "fd", 10000},
    {"handshakes", "unix", 1000}, {"handshakes", "tcp", 500},   {"half_frames", "unix", 200},
    {"half_frames", "tcp", 200},  {"streams", "unix", 10000},   {"unread_calls", "unix", 8},
    {"unread_steps", "unix", 1},  {"unread_unary", "unix", 64}, {"large_requests", "unix", 256},
    {"drip", "unix", 200},        {"drip", "tcp", 200},
};

// The mean of each minute.
std::string MemoryByMinute(const std::vector<Look>& looks) {
  std::map<int, std::pair<double, int>> sums;
  for (const Look& look : looks) {
    auto& [sum, count] = sums[static_cast<int>(look.minutes)];
    sum += static_cast<double>(look.process.anonymous_bytes);
    ++count;
  }
  std::vector<int64_t> means;
  for (const auto& [minute, sum] : sums) {
    means.push_back(static_cast<int64_t>(sum.first / sum.second));
  }
  return absl::StrCat("[", absl::StrJoin(means, ", "), "]");
}

}  // namespace

Findings FindingsOf(const WorkerResult& result) {
  return {{"requests", absl::StrCat(result.requests)},
          {"rows_checked", absl::StrCat(result.rows_checked)},
          {"wrong_rows", absl::StrCat(result.wrong_rows)},
          {"sessions", absl::StrCat(result.sessions)},
          {"errors", absl::StrCat(result.errors)},
          {"first_error", result.first_error},
          {"late_ms_max", absl::StrCat(result.late_ms_max)}};
}

Findings FindingsOf(const HostileResult& result) {
  return {{"opened", absl::StrCat(result.opened)},
          {"refused", absl::StrCat(result.refused)},
          {"closed", absl::StrCat(result.closed)},
          {"held_max", absl::StrCat(result.held_max)},
          {"answered", absl::StrCat(result.answered)},
          {"sent_bytes", absl::StrCat(result.sent_bytes)},
          {"last_word", result.last_word}};
}

LoadRun::LoadRun(const LoadOptions& options)
    : options_(options), folder_(NewFolder()), daemon_({.flags = {"--tcp=127.0.0.1:0"}}) {
  Demand(daemon_.WaitUntilReady(), "the daemon does not start");
  grpc::ClientContext context;
  v1::GetNodeInfoResponse info;
  Demand(daemon_.admin().GetNodeInfo(&context, v1::GetNodeInfoRequest(), &info).ok(),
         "GetNodeInfo fails");
  for (const std::string& address : info.listen_addresses()) {
    if (!absl::StartsWith(address, "unix:")) tcp_address_ = address;
  }
}

LoadRun::~LoadRun() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void LoadRun::Demand(bool holds, const std::string& what) {
  if (!holds) complaints_.push_back(what);
}

void LoadRun::StartWorkers(const std::string& name, absl::Time begin, absl::Time end,
                           Children* children) {
  const int32_t each = options_.workers / options_.processes;
  const absl::Duration period = absl::Minutes(1) / options_.requests_per_minute * options_.workers;
  for (int32_t p = 0; p < options_.processes; ++p) {
    children->Start({"--role=workers", "--socket=" + daemon_.socket_path(),
                     absl::StrCat("--first=", p * each), absl::StrCat("--count=", each),
                     absl::StrCat("--workers=", options_.workers), absl::StrCat("--caches=", each),
                     absl::StrCat("--period_us=", absl::ToInt64Microseconds(period)),
                     absl::StrCat("--begin=", absl::ToUnixMillis(begin)),
                     absl::StrCat("--end=", absl::ToUnixMillis(end)),
                     absl::StrCat("--result=", folder_, "/", name, "-workers-", p)});
  }
}

void LoadRun::StartHostile(const std::string& name, absl::Time end, Children* children) {
  for (const HostileShare& share : kShares) {
    if (std::ranges::find(options_.hostile, share.kind) == options_.hostile.end()) continue;
    const std::string where = share.where;
    const std::string address = where == "unix"  ? "unix:" + daemon_.socket_path()
                                : where == "tcp" ? tcp_address_
                                                 : "fd:" + daemon_.socket_path() + ".fd";
    children->Start({"--role=hostile", absl::StrCat("--kind=", share.kind), "--address=" + address,
                     absl::StrCat("--count=", share.count),
                     absl::StrCat("--end=", absl::ToUnixMillis(end)),
                     absl::StrCat("--result=", folder_, "/", name, "-", share.kind, "-", where)});
  }
}

LoadRun::Phase LoadRun::RunPhase(const std::string& name, absl::Duration duration,
                                 CallTimes* times) {
  Phase phase;
  Watch watch(daemon_.pid(), daemon_.socket_path(), kLookInterval, times);
  const absl::Time begin = absl::Now() + absl::Seconds(1), end = begin + duration;
  Children children;
  StartWorkers(name, begin, end, &children);
  StartHostile(name, end, &children);
  phase.failed_processes = children.Wait();
  phase.looks = watch.End();
  Demand(watch.errors() == 0,
         absl::StrCat(name, ": ", watch.errors(), " questions without an answer, first ",
                      watch.first_error()));
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string file = entry.path().filename();
    if (!absl::StartsWith(file, name + "-") || absl::EndsWith(file, ".times")) continue;
    const Findings found = ReadFindings(entry.path());
    if (!absl::StartsWith(file, name + "-workers-")) {
      phase.hostile.emplace_back(file.substr(name.size() + 1), found);
      continue;
    }
    phase.workers.Add({.requests = static_cast<int64_t>(NumberOf(found, "requests")),
                       .rows_checked = static_cast<int64_t>(NumberOf(found, "rows_checked")),
                       .wrong_rows = static_cast<int64_t>(NumberOf(found, "wrong_rows")),
                       .sessions = static_cast<int64_t>(NumberOf(found, "sessions")),
                       .errors = static_cast<int64_t>(NumberOf(found, "errors")),
                       .first_error = found.contains("first_error") ? found.at("first_error") : "",
                       .late_ms_max = NumberOf(found, "late_ms_max")});
    const absl::Status read = times->MergeFrom(entry.path().string() + ".times");
    Demand(read.ok(), read.ToString());
  }
  std::sort(phase.hostile.begin(), phase.hostile.end());
  return phase;
}

ProcessSample LoadRun::Settle(const ProcessSample* before) {
  ProcessSample sample;
  const absl::Time end = absl::Now() + kSettleMax;
  while (absl::Now() < end) {
    Pace(absl::Milliseconds(500));
    const v1::GetStatsResponse stats = daemon_.Stats();
    const absl::StatusOr<ProcessSample> now = SampleProcess(daemon_.pid());
    if (!now.ok()) break;
    sample = *now;
    const bool idle =
        stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
    const bool back = before != nullptr && sample.descriptors <= before->descriptors &&
                      sample.threads <= before->threads + kOwnThreads &&
                      sample.anonymous_bytes <= before->anonymous_bytes + kHostileGrowthMax;
    if (idle && back) break;
  }
  const v1::GetStatsResponse stats = daemon_.Stats();
  Demand(stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0,
         absl::StrCat("not all was taken back: ", stats.sessions(), " sessions, ",
                      stats.caches_size(), " caches, ", stats.pool().used_bytes(), " bytes"));
  return sample;
}

double LoadRun::SlopeOf(const std::vector<Look>& looks) const {
  const std::vector<Point> points =
      PointsOf(looks, [](const Look& look) { return look.process.anonymous_bytes; });
  return load::SlopeOf(After(points, absl::ToDoubleMinutes(options_.load) * kSettlingShare));
}

void LoadRun::PrintDescriptors() const {
  const std::string folder = absl::StrCat("/proc/", daemon_.pid(), "/fd");
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    std::printf("descriptor %s: %s\n", entry.path().filename().c_str(), target.c_str());
  }
}

bool LoadRun::Run() {
  if (complaints_.empty()) {
    CallTimes ignored, times;
    (void)RunPhase("warmup", options_.warm_up, &ignored);
    const ProcessSample before = Settle(nullptr);
    const Phase phase = RunPhase("load", options_.load, &times);
    const ProcessSample after = Settle(&before);
    if (after.descriptors > before.descriptors) PrintDescriptors();
    Judge(phase, before, after, times);
    Report(phase, before, after, times);
    Demand(daemon_.Stop() == 0, "the daemon did not stop in order");
  }
  for (const std::string& complaint : complaints_) std::printf("WRONG: %s\n", complaint.c_str());
  std::printf("load: %s\n", complaints_.empty() ? "nothing is wrong" : "FAILED");
  return complaints_.empty();
}

void LoadRun::Judge(const Phase& phase, const ProcessSample& before, const ProcessSample& after,
                    const CallTimes& times) {
  const WorkerResult& workers = phase.workers;
  const double asked = absl::ToDoubleMinutes(options_.load) * options_.requests_per_minute;
  Demand(phase.failed_processes == 0, absl::StrCat(phase.failed_processes, " processes failed"));
  Demand(workers.errors == 0,
         absl::StrCat(workers.errors, " errors of workers, first ", workers.first_error));
  Demand(workers.wrong_rows == 0, absl::StrCat(workers.wrong_rows, " rows with wrong bytes"));
  Demand(static_cast<double>(workers.requests) >= 0.999 * asked,
         absl::StrCat(workers.requests, " requests of ", asked));
  Demand(workers.late_ms_max <= kLateMsMax,
         absl::StrCat("a request began ", workers.late_ms_max / 1e3, " s late"));
  for (const auto& [name, us] : times.all()) {
    const float longest = *std::ranges::max_element(us);
    Demand(!absl::StartsWith(name, "Check") || longest < kLivenessMaxUs,
           absl::StrCat(name, ": once after ", longest / 1e6, " s"));
  }
  const double slope = SlopeOf(phase.looks);
  Demand(slope <= kSlopeMax || !options_.hostile.empty(),
         absl::StrFormat("memory grows by %.0f bytes a minute", slope));
  Demand(after.anonymous_bytes <= before.anonymous_bytes + kHostileGrowthMax,
         absl::StrCat("memory: ", before.anonymous_bytes, " bytes, then ", after.anonymous_bytes));
  Demand(after.descriptors <= before.descriptors,
         absl::StrCat("descriptors: ", before.descriptors, ", then ", after.descriptors));
  Demand(after.threads <= before.threads + kOwnThreads,
         absl::StrCat("threads: ", before.threads, ", then ", after.threads));
}

void LoadRun::Report(const Phase& phase, const ProcessSample& before, const ProcessSample& after,
                     const CallTimes& times) {
  std::vector<std::string> results;
  std::printf("\n%d workers in %d processes, %s; hostile: %s\n", options_.workers,
              options_.processes, absl::FormatDuration(options_.load).c_str(),
              options_.hostile.empty() ? "none" : absl::StrJoin(options_.hostile, ", ").c_str());
  std::printf("| call | calls | p50 us | p99 us | p99.9 us | max us |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, us] : times.all()) {
    const std::vector<double> values(us.begin(), us.end());
    const double p50 = testing::Percentile(values, 0.5), p99 = testing::Percentile(values, 0.99),
                 p999 = testing::Percentile(values, 0.999), most = testing::Percentile(values, 1);
    std::printf("| %s | %zu | %.0f | %.0f | %.0f | %.0f |\n", name.c_str(), us.size(), p50, p99,
                p999, most);
    results.push_back(testing::JsonObject()
                          .Add("benchmark", std::string("load"))
                          .Add("call", name)
                          .Add("samples", static_cast<int64_t>(us.size()))
                          .Add("p50_us", p50)
                          .Add("p99_us", p99)
                          .Add("p999_us", p999)
                          .Add("max_us", most)
                          .ToString());
  }
  std::printf(
      "\n| hostile | opened | held at most | ended by the daemon | refused | answered | "
      "last word |\n| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, found] : phase.hostile) {
    std::printf("| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %s |\n", name.c_str(),
                NumberOf(found, "opened"), NumberOf(found, "held_max"), NumberOf(found, "closed"),
                NumberOf(found, "refused"), NumberOf(found, "answered"),
                found.contains("last_word") ? found.at("last_word").c_str() : "");
  }
  results.push_back(Summary(phase, before, after));
  std::printf("\n%s\n", results.back().c_str());
  testing::WriteText(options_.json, testing::JsonList(results));
  if (!options_.json.empty()) {
    testing::WriteText(testing::MachinePath(options_.json), testing::DescribeMachine().ToString());
  }
}

std::string LoadRun::Summary(const Phase& phase, const ProcessSample& before,
                             const ProcessSample& after) const {
  const WorkerResult& workers = phase.workers;
  int64_t descriptors = 0, threads = 0, anonymous = 0;
  for (const Look& look : phase.looks) {
    descriptors = std::max(descriptors, look.process.descriptors);
    threads = std::max(threads, look.process.threads);
    anonymous = std::max(anonymous, look.process.anonymous_bytes);
  }
  testing::JsonObject summary;
  summary.Add("benchmark", std::string("load"))
      .Add("call", std::string("all"))
      .Add("requests", workers.requests)
      .Add("rows_checked", workers.rows_checked)
      .Add("wrong_rows", workers.wrong_rows)
      .Add("errors", workers.errors)
      .Add("sessions", workers.sessions)
      .Add("late_ms_max", workers.late_ms_max)
      .Add("memory_slope_bytes_per_minute", SlopeOf(phase.looks))
      .Add("memory_before_bytes", before.anonymous_bytes)
      .Add("memory_max_bytes", anonymous)
      .Add("memory_after_bytes", after.anonymous_bytes)
      .AddJson("memory_bytes_by_minute", MemoryByMinute(phase.looks))
      .Add("descriptors_before", before.descriptors)
      .Add("descriptors_max", descriptors)
      .Add("descriptors_after", after.descriptors)
      .Add("threads_before", before.threads)
      .Add("threads_max", threads)
      .Add("threads_after", after.threads)
      .Add("cpu_seconds", after.cpu_seconds - before.cpu_seconds)
      .Add("seconds", absl::ToDoubleSeconds(options_.load))
      .Add("commit", options_.commit);
  return summary.ToString();
}

}  // namespace kvtier::load
