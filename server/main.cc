// kvtierd: starts the daemon, waits for a signal, stops it.

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/clock.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/device/make_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/server.h"
#include "server/session/node.h"

ABSL_FLAG(std::string, socket, "/run/kvtierd/kvtierd.sock", "Unix socket that workers connect to");
ABSL_FLAG(std::vector<std::string>, tcp, {}, "host:port list for operators; none by default");
ABSL_FLAG(std::string, backend, "auto", "auto, cpu or cuda");
ABSL_FLAG(std::string, pool_bytes, "1GiB", "size of the host pool; KiB, MiB, GiB, TiB are known");
ABSL_FLAG(std::string, huge_pages, "auto", "2 MiB pages of the host pool: auto, never or require");
ABSL_FLAG(int, numa_node, -1, "NUMA node of the host pool; -1: any");
ABSL_FLAG(int, pin_threads, 4, "threads that touch the host pool at start");
ABSL_FLAG(int, cpu_threads, 1, "threads of each device stream of the CPU backend");
ABSL_FLAG(std::string, socket_mode, "0660", "mode of the sockets, octal");
ABSL_FLAG(int, socket_gid, -1, "group of the sockets; -1: the process's");
ABSL_FLAG(bool, allow_world_writable_socket, false, "accept a --socket_mode that all may write");
ABSL_FLAG(absl::Duration, shutdown_grace, absl::Seconds(5), "time that running calls get to end");
ABSL_FLAG(bool, version, false, "print the version and exit");

namespace kvtier {
namespace {

constexpr char kVersion[] = "0.1.0";

enum ExitCode : int {
  kOk = 0,
  kUsage = 2,          // a flag is wrong
  kCannotServe = 3,    // the socket, the backend or the pool could not be had
  kStuck = 4,          // something did not end within the grace
  kDeviceLost = 5,     // a device is lost; start again
};

// One event a line: name and key=value pairs.
void Log(const std::string& text) {
  const std::string line = absl::StrCat(absl::FormatTime(absl::Now()), " kvtierd ", text, "\n");
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

int Fail(const absl::Status& status, int code) {
  Log(absl::StrCat("failed reason=", ErrorReasonOf(status), " text=\"", status.message(), "\""));
  return code;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  std::string number = text;
  int64_t unit = 1;
  const std::pair<const char*, int64_t> kUnits[] = {{"KiB", int64_t{1} << 10},
                                                    {"MiB", int64_t{1} << 20},
                                                    {"GiB", int64_t{1} << 30},
                                                    {"TiB", int64_t{1} << 40}};
  for (const auto& [suffix, bytes] : kUnits) {
    if (text.size() > 3 && text.substr(text.size() - 3) == suffix) {
      number = text.substr(0, text.size() - 3);
      unit = bytes;
    }
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || value <= 0 || value > INT64_MAX / unit) {
    return FieldInvalid("pool_bytes", text, "a positive number, with KiB, MiB, GiB or TiB or none");
  }
  return value * unit;
}

absl::StatusOr<HostPoolOptions> PoolOptions() {
  HostPoolOptions options;
  KVTIER_ASSIGN_OR_RETURN(options.size_bytes, ParseBytes(absl::GetFlag(FLAGS_pool_bytes)));
  options.touch_threads = absl::GetFlag(FLAGS_pin_threads);
  options.numa_node = absl::GetFlag(FLAGS_numa_node);
  const std::string huge = absl::GetFlag(FLAGS_huge_pages);
  if (huge == "auto") {
    options.huge_pages = HugePages::kAuto;
  } else if (huge == "never") {
    options.huge_pages = HugePages::kNever;
  } else if (huge == "require") {
    options.huge_pages = HugePages::kRequire;
  } else {
    return FieldInvalid("huge_pages", huge, "auto, never or require");
  }
  return options;
}

absl::StatusOr<ServerOptions> ListenOptions() {
  ServerOptions options;
  options.version = kVersion;
  options.socket_path = absl::GetFlag(FLAGS_socket);
  options.socket_gid = absl::GetFlag(FLAGS_socket_gid);
  options.tcp_addresses = absl::GetFlag(FLAGS_tcp);
  options.allow_world_writable = absl::GetFlag(FLAGS_allow_world_writable_socket);
  const std::string mode = absl::GetFlag(FLAGS_socket_mode);
  char* end = nullptr;
  const long value = strtol(mode.c_str(), &end, 8);  // NOLINT(google-runtime-int): strtol's
  if (mode.empty() || *end != '\0' || value < 0 || value > 0777) {
    return FieldInvalid("socket_mode", mode, "octal, 0..0777");
  }
  options.socket_mode = static_cast<int>(value);
  return options;
}

// Waits for SIGTERM or SIGINT; looks at the device and the pool now and then.
int WaitForEnd(const sigset_t& signals, const DeviceBackend& backend, const HostPool& pool) {
  const timespec tick = {.tv_sec = 0, .tv_nsec = 500'000'000};
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, &tick);
    if (signal > 0) {
      Log(absl::StrCat("stopping signal=", signal));
      return kOk;
    }
    if (const absl::Status health = backend.Health(); !health.ok()) return Fail(health, kDeviceLost);
    if (pool.stats().state == HostPool::State::kFailed) return kCannotServe;
  }
}

// Ends the process if stopping takes longer than it may.
class Watchdog {
 public:
  explicit Watchdog(absl::Duration limit)
      : thread_([this, limit] {
          const absl::Time end = absl::Now() + limit;
          while (!done_.load() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(20));
          if (done_.load()) return;
          Log("stuck text=\"calls or device streams did not end within the grace\"");
          _exit(kStuck);
        }) {}
  ~Watchdog() {
    done_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

int Serve(const sigset_t& signals) {
  const absl::StatusOr<ServerOptions> listen = ListenOptions();
  if (!listen.ok()) return Fail(listen.status(), kUsage);
  const absl::StatusOr<HostPoolOptions> pool_options = PoolOptions();
  if (!pool_options.ok()) return Fail(pool_options.status(), kUsage);
  absl::StatusOr<ChosenBackend> chosen =
      MakeBackend(absl::GetFlag(FLAGS_backend), absl::GetFlag(FLAGS_cpu_threads));
  if (!chosen.ok()) return Fail(chosen.status(), kCannotServe);
  Log(absl::StrCat("backend ", chosen->note));
  absl::StatusOr<std::unique_ptr<HostPool>> pool =
      HostPool::Create(*pool_options, chosen->backend.get());
  if (!pool.ok()) return Fail(pool.status(), kCannotServe);

  const SystemClock clock;
  Node node({.version = kVersion}, &clock, chosen->backend.get(), pool->get());
  // The port is open before the pool is pinned: who asks meanwhile hears POOL_PINNING.
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*listen, &node, pool->get(), chosen->backend.get());
  if (!server.ok()) return Fail(server.status(), kCannotServe);
  Log(absl::StrCat("listening socket=", listen->socket_path, " boot_id=", node.boot_id()));
  (*pool)->Start([](int64_t pinned, int64_t total) {
    Log(absl::StrCat("pinning pinned_bytes=", pinned, " total_bytes=", total));
  });

  int code = WaitForEnd(signals, *chosen->backend, **pool);
  if (code == kCannotServe) {
    Fail((*pool)->WaitReady(absl::Now()), code);
  }
  const absl::Duration grace = absl::GetFlag(FLAGS_shutdown_grace);
  const Watchdog watchdog(grace + absl::Seconds(1));
  (*pool)->Cancel();
  node.Drain("the daemon stops");
  if (const absl::Status status = node.CloseAllSessions("the daemon stops", absl::Now() + grace);
      !status.ok() && code == kOk) {
    code = Fail(status, kStuck);
  }
  (*server)->Shutdown(grace);
  Log("stopped");
  return code;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "The KV tiering daemon of a node.\n"
      "Exit status: 0 stopped by a signal; 2 a flag is wrong; 3 the socket, the backend or the\n"
      "pool could not be had; 4 something did not end within the grace; 5 a device is lost.");
  absl::ParseCommandLine(argc, argv);
  if (absl::GetFlag(FLAGS_version)) {
    std::printf("kvtierd %s\n", kVersion);
    return kOk;
  }
  // Taken by sigtimedwait in this thread alone; every other thread inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return Serve(signals);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
