#include "client/cli/top.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/views.h"
#include "client/error.h"

namespace kvtier::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr char kBold[] = "\x1b[1m";
constexpr char kPlain[] = "\x1b[0m";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // another screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";

// The next of 1, 2, 5, 10, 20, 50, ...
double RoundUp(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (value <= step * power) return step * power;
  }
  return 10 * power;
}

std::string BarLine(absl::string_view name, double fraction, absl::string_view text) {
  return absl::StrFormat("%-15s%s %s", name, Bar(fraction, kBarWidth), text);
}

std::string RateText(const v1::Counters& total, const v1::Window& lately) {
  return absl::StrCat(Percent(lately.has_hit_rate(), lately.hit_rate()), " lately, ",
                      Percent(total.has_hit_rate(), total.hit_rate()), " since the start, ",
                      Rate(lately.steps_per_second()), " steps/s");
}

Table CacheTable(const v1::GetStatsResponse& stats) {
  Table table({"CACHE", ">SESS", ">REQ", ">BLOCKS", ">HIT", ">ALL", ">TO GPU", ">TO HOST",
               ">EVICT/S", ">SWAP-IN P50", ">P99"});
  for (const v1::CacheStats& cache : stats.caches()) {
    int64_t requests = 0, requests_max = 0;
    for (const v1::SessionCacheStats& session : cache.sessions()) {
      requests += session.requests();
      requests_max += session.requests_max();
    }
    std::string p50 = "-", p99 = "-";
    for (const v1::OperationStats& operation : cache.operations()) {
      if (operation.operation() != "swap_in" || operation.count() == 0) continue;
      const int64_t middle = Quantile(operation, 0.5), high = Quantile(operation, 0.99);
      p50 = middle < 0 ? "> 10 s" : Latency(middle);
      p99 = high < 0 ? "> 10 s" : Latency(high);
    }
    const v1::Window& window = cache.window();
    table.Add({cache.cache(), absl::StrCat(cache.sessions_size()),
               absl::StrCat(requests, "/", requests_max),
               absl::StrCat(cache.blocks_used(), "/", cache.blocks_total()),
               Percent(window.has_hit_rate(), window.hit_rate()),
               Percent(cache.counters().has_hit_rate(), cache.counters().hit_rate()),
               BytesPerSecond(window.bytes_copied_per_second()),
               BytesPerSecond(window.backed_up_bytes_per_second()),
               Rate(window.evictions_per_second()), p50, p99});
  }
  return table;
}

Screen ScreenOf(int fd) {
  Screen screen;
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    screen.columns = size.ws_col;
    screen.rows = size.ws_row;
  }
  screen.color = isatty(fd) != 0 && getenv("NO_COLOR") == nullptr;
  return screen;
}

void Show(const std::string& frame, bool terminal) {
  if (!terminal) {
    std::printf("%s\n", frame.c_str());
  } else {
    // Over the one before, so that nothing flickers.
    std::string text = kHome;
    for (const absl::string_view line : absl::StrSplit(frame, '\n', absl::SkipEmpty())) {
      absl::StrAppend(&text, line == " " ? "" : line, kClearLine, "\r\n");
    }
    std::printf("%s%s", text.c_str(), kClearBelow);
  }
  std::fflush(stdout);
}

sigset_t Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);  // ends the thread that waits for the others
  return signals;
}

// SIGINT and SIGTERM end the call instead of the process.
class Interrupt {
 public:
  explicit Interrupt(grpc::ClientContext* context)
      : thread_([context] {
          const sigset_t signals = Interrupts();
          int signal = 0;
          sigwait(&signals, &signal);
          if (signal != SIGUSR1) context->TryCancel();
        }) {}
  ~Interrupt() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }

 private:
  std::thread thread_;
};

}  // namespace

std::string Top::Frame(const v1::GetStatsResponse& stats, const Screen& screen) {
  const v1::Window& window = stats.window();
  const double in = window.bytes_copied_per_second();
  const double out = window.backed_up_bytes_per_second();
  largest_rate_ = std::max({largest_rate_, in, out});
  const double scale = RoundUp(largest_rate_);
  const v1::PoolStats& pool = stats.pool();
  const double total = static_cast<double>(std::max<int64_t>(pool.total_bytes(), 1));
  uint64_t hot_total = 0, hot_used = 0;  // of whatever a daemon says
  for (const v1::CacheStats& cache : stats.caches()) {
    for (const v1::SessionCacheStats& session : cache.sessions()) {
      hot_total += static_cast<uint64_t>(session.hot_rows_total());
      hot_used += static_cast<uint64_t>(session.hot_rows_used());
    }
  }
  const bool pinning = pool.state() == v1::POOL_STATE_PINNING;
  std::vector<std::string> lines = {
      absl::StrCat("kvtierd ", version_, "  boot ", stats.boot_id(), "  up ",
                   Age(TimeOf(stats.time()) - TimeOf(stats.start_time())), "  ", stats.sessions(),
                   " sessions  ",
                   stats.draining() ? "DRAINING"
                   : pinning        ? "PINNING"
                                    : "ready"),
      " ",
      BarLine("hit rate", window.hit_rate(), RateText(stats.counters(), window)),
      BarLine("host to device", in / scale,
              absl::StrCat(BytesPerSecond(in),
                           largest_rate_ > 0 ? absl::StrCat(" of ", BytesPerSecond(scale)) : "",
                           ", ", Rate(window.rows_copied_per_second()), " rows/s")),
      BarLine("device to host", out / scale,
              absl::StrCat(BytesPerSecond(out), ", ", Rate(window.backed_up_rows_per_second()),
                           " rows/s")),
      BarLine(pinning ? "pool pinned" : "pool used",
              static_cast<double>(pinning ? pool.pinned_bytes() : pool.used_bytes()) / total,
              absl::StrCat(Bytes(pinning ? pool.pinned_bytes() : pool.used_bytes()), " of ",
                           Bytes(pool.total_bytes()), ", largest free ",
                           Bytes(pool.largest_free_bytes()))),
      BarLine("hot rows",
              static_cast<double>(hot_used) / static_cast<double>(std::max<uint64_t>(hot_total, 1)),
              absl::StrCat(Grouped(static_cast<int64_t>(hot_used)), " of ",
                           Grouped(static_cast<int64_t>(hot_total)), " in regions of requests")),
      " "};
  const Table table = CacheTable(stats);
  if (table.empty()) {
    lines.emplace_back("no caches");
  } else {
    for (const absl::string_view line : absl::StrSplit(table.Text(), '\n', absl::SkipEmpty())) {
      lines.emplace_back(line);
    }
  }
  const size_t rows = static_cast<size_t>(std::max(screen.rows - 1, 1));
  if (lines.size() > rows) lines.resize(rows);
  std::string frame;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string cut = lines[i].substr(0, static_cast<size_t>(std::max(screen.columns, 1)));
    const bool bold = screen.color && (i == 0 || (i == 8 && !table.empty()));
    absl::StrAppend(&frame, bold ? kBold : "", cut, bold ? kPlain : "", "\n");
  }
  return frame;
}

void BlockInterrupts() {
  const sigset_t signals = Interrupts();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int RunTop(const Admin& admin, const Arguments& arguments, absl::Status* error) {
  const absl::StatusOr<v1::GetNodeInfoResponse> info =
      admin.Call(&v1::KvTierAdmin::Stub::GetNodeInfo, v1::GetNodeInfoRequest());
  if (!info.ok()) {
    *error = info.status();
    return kNotReached;
  }
  v1::WatchStatsRequest request;
  if (!arguments.operands.empty()) request.set_cache(arguments.operands[0]);
  request.mutable_interval()->set_seconds(absl::ToInt64Seconds(arguments.interval));
  request.mutable_interval()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(arguments.interval % absl::Seconds(1))));
  const bool json = arguments.output == Output::kJson;
  const bool terminal = !json && isatty(STDOUT_FILENO) != 0;
  Top top(info->version());
  grpc::ClientContext context;
  const Interrupt interrupt(&context);
  if (terminal) std::printf("%s", kEnter);
  const auto reader = admin.stub()->WatchStats(&context, request);
  v1::GetStatsResponse stats;
  int shown = 0;
  while (reader->Read(&stats)) {
    if (json) {
      std::printf("%s\n", ToJson(stats, /*lines=*/false).c_str());
      std::fflush(stdout);
    } else {
      Screen screen = ScreenOf(STDOUT_FILENO);
      if (!terminal) screen = {.columns = 200, .rows = 1000};
      Show(top.Frame(stats, screen), terminal);
    }
    if (arguments.iterations.has_value() && ++shown >= *arguments.iterations) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (terminal) std::printf("%s", kLeave);
  std::fflush(stdout);
  // Cancelled: by whoever looks.
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) return kDone;
  *error = admin.Explain(status);
  return client::ErrorReasonOf(*error).empty() ? kNotReached : kRefused;
}

}  // namespace kvtier::cli
