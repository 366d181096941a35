// A worker process of the demo (client/demo/demo.py starts two).
//
// Writes one JSON object a line to standard output: {"progress": {...}} now and then, then
// {"done": {...}} with everything it counted; then waits, attached, until standard input ends,
// so that its session's statistics can still be looked at. Exit status: 0; 1 with the reason on
// standard error; 2 for bad arguments.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cache.h"
#include "client/demo/worker.h"
#include "client/session.h"
#include "client/trace/trace_file.h"

ABSL_FLAG(std::string, socket, "", "the daemon's socket");
ABSL_FLAG(std::string, name, "worker", "name of the session");
ABSL_FLAG(std::string, plane, "in_process", "in_process or rpc");
ABSL_FLAG(std::string, cache, "demo", "cache to create or join");
ABSL_FLAG(std::vector<std::string>, traces, {}, "trace files, one document each");
ABSL_FLAG(int32_t, steps, 256, "steps of each document");
ABSL_FLAG(int32_t, requests_per_document, 3, "requests that share a document's steps");
ABSL_FLAG(int32_t, groups, 4, "layer groups, one for each layer of a trace");
ABSL_FLAG(int32_t, block_count, 1600, "blocks of the cache, the same for all workers");
ABSL_FLAG(std::string, eviction, "lru", "lru or aged, the same for all workers");
ABSL_FLAG(bool, corrupt_row, false, "spoil a host row, to see it found");

namespace kvtier::demo {
namespace {

// Progress is for people: a few lines a second.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);

std::string ToJson(const Totals& totals) {
  return absl::StrCat(
      "{\"decode_steps\": ", totals.decode_steps, ", \"swap_ins\": ", totals.swap_ins,
      ", \"rows_checked\": ", totals.rows_checked,
      ", \"mismatched_rows\": ", totals.mismatched_rows, ", \"hits\": ", totals.hits,
      ", \"misses\": ", totals.misses, ", \"newest\": ", totals.newest, ", \"kept\": ", totals.kept,
      ", \"backed_up_rows\": ", totals.backed_up_rows, "}");
}

void Say(const char* event, const Totals& totals) {
  std::printf("{\"%s\": %s}\n", event, ToJson(totals).c_str());
  std::fflush(stdout);
}

int Fail(const absl::Status& status, int code = 1) {
  std::fprintf(stderr, "%s: %s\n", absl::GetFlag(FLAGS_name).c_str(), status.ToString().c_str());
  return code;
}

int Main() {
  WorkerOptions options = {.name = absl::GetFlag(FLAGS_name),
                           .steps = absl::GetFlag(FLAGS_steps),
                           .requests_per_document = absl::GetFlag(FLAGS_requests_per_document),
                           .corrupt_row = absl::GetFlag(FLAGS_corrupt_row)};
  if (absl::GetFlag(FLAGS_plane) == "rpc") options.plane = Plane::kRpc;
  std::vector<client::Trace> traces;
  for (const std::string& path : absl::GetFlag(FLAGS_traces)) {
    absl::StatusOr<client::Trace> trace = client::ReadTrace(path);
    if (!trace.ok()) return Fail(trace.status(), 2);
    traces.push_back(*std::move(trace));
    if (traces.back().layer_count < absl::GetFlag(FLAGS_groups)) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(path, " has fewer layers than --groups")),
                  2);
    }
  }
  if (traces.empty() || options.requests_per_document < 1 || options.steps < 1) {
    return Fail(absl::InvalidArgumentError("no traces, requests or steps"), 2);
  }

  absl::StatusOr<client::Session> session =
      client::Session::Open({.socket_path = absl::GetFlag(FLAGS_socket),
                             .client_name = options.name,
                             .call_timeout = absl::Seconds(30)});
  if (!session.ok()) return Fail(session.status());
  absl::StatusOr<client::Cache> cache = client::Cache::Attach(
      *session,
      {.cache = absl::GetFlag(FLAGS_cache),
       .layout = DemoLayout(absl::GetFlag(FLAGS_groups), absl::GetFlag(FLAGS_block_count),
                            static_cast<int32_t>(traces.size()), traces.front().top_k,
                            absl::GetFlag(FLAGS_eviction) == "aged" ? v1::EVICTION_POLICY_AGED
                                                                    : v1::EVICTION_POLICY_LRU),
       .wait_for_pool = absl::Minutes(1)});
  if (!cache.ok()) return Fail(cache.status());

  Totals totals;
  absl::Time said = absl::InfinitePast();
  const absl::Status status =
      RunWorker(&*cache, traces, options, &totals, [&said](const Totals& now) {
        if (absl::Now() - said < kProgressInterval) return;
        said = absl::Now();
        Say("progress", now);
      });
  if (!status.ok()) return Fail(status);
  Say("done", totals);
  char ignored[64];
  while (read(STDIN_FILENO, ignored, sizeof(ignored)) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace kvtier::demo

int main(int argc, char** argv) {
  // Whoever started the demo may be killed; nobody would stop this process then.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::SetProgramUsageMessage("a worker process of tools/demo");
  absl::ParseCommandLine(argc, argv);
  return kvtier::demo::Main();
}
