// kvtierd: flags, signals, exit codes.
//
// Started in this order: device backend, host pool (mapped only), node, server; then the pool is
// pinned, while the server answers already. Stopped in the reverse order.
#include <signal.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/error.h"
#include "server/device/make_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/byte_size.h"
#include "server/service/log.h"
#include "server/service/server.h"
#include "server/service/watchdog.h"
#include "server/session/node.h"

ABSL_FLAG(std::string, socket, "/run/kvtierd/kvtierd.sock",
          "Unix socket that workers connect to. Its folder must exist. <socket>.fd and "
          "<socket>.lock lie beside it.");
ABSL_FLAG(std::string, socket_mode, "0660", "Mode of the sockets, octal, whatever the umask.");
ABSL_FLAG(int32_t, socket_gid, -1, "Group of the sockets, a number. -1: the process's own.");
ABSL_FLAG(bool, allow_world_writable_socket, false,
          "Accept a --socket_mode with which every user of the machine may connect.");
ABSL_FLAG(std::vector<std::string>, tcp, {},
          "host:port, or several with commas between, where operators connect; port 0: any. There "
          "is no authentication: keep it on loopback. None by default.");
ABSL_FLAG(std::string, backend, "auto", "Devices: auto, cpu or cuda.");
ABSL_FLAG(int32_t, cpu_threads, 1, "Threads of each device stream of the CPU backend.");
ABSL_FLAG(std::string, device_memory, "fd",
          "How workers map the memory of a GPU: fd (descriptors; works across namespaces), or ipc "
          "(legacy CUDA IPC handles).");
ABSL_FLAG(std::string, pool_bytes, "1GiB",
          "Size of the host pool: bytes, or a number with KiB, MiB, GiB or TiB.");
ABSL_FLAG(std::string, huge_pages, "auto",
          "Pages of 2 MiB for the host pool: auto (where the system gives them), never, or require "
          "(reserved ones, or an error).");
ABSL_FLAG(int32_t, numa_node, -1, "NUMA node of the host pool. -1: any.");
ABSL_FLAG(int32_t, pin_threads, 16,
          "Threads that touch the host pool's memory at the start; no more than processors.");
ABSL_FLAG(absl::Duration, shutdown_grace, absl::Seconds(5),
          "How long running calls may take to end after SIGTERM or SIGINT.");

namespace kvtier {
namespace {

constexpr char kVersion[] = "0.1.0";

// In the usage text below; keep them the same.
enum ExitCode : int {
  kStopped = 0,
  kBadCommandLine = 1,  // Abseil's own code for flags that it cannot parse
  kNoSocket = 2,
  kSocketInUse = 3,
  kNoBackend = 4,
  kNoPool = 5,
  kDeviceLost = 6,
  kStuck = 7,
};
constexpr char kUsage[] =
    "The KV tiering daemon of a node.\n\n"
    "Exit codes:\n"
    "  0  stopped by SIGTERM or SIGINT, in order\n"
    "  1  the command line is wrong\n"
    "  2  the socket or a TCP address cannot be served: its path, folder, rights or port\n"
    "  3  another process serves at the socket\n"
    "  4  there is no such device backend here\n"
    "  5  the host pool cannot be had or pinned\n"
    "  6  a device was lost; start again\n"
    "  7  stopped, but something did not end within the grace; the log names it";

// How often the devices and the pool are looked at.
constexpr timespec kTick = {.tv_sec = 0, .tv_nsec = 200'000'000};
// What is left of a process whose device is lost ends soon, for the supervisor's sake.
constexpr absl::Duration kLostDeviceGrace = absl::Seconds(1);
constexpr absl::Duration kWatchdogMargin = absl::Milliseconds(500);

// Both are logged and ended with.
struct Failure {
  int code = kStopped;
  absl::Status status;
};

int Fail(const Log& log, int code, const absl::Status& status) {
  log.Event("failed", {{"exit_code", code},
                       {"reason", ErrorReasonOf(status)},
                       {"message", std::string(status.message())}});
  return code;
}

absl::Status BadFlag(absl::string_view flag, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", why));
}

absl::StatusOr<HostPoolOptions> PoolOptionsOfFlags() {
  HostPoolOptions options;
  const absl::StatusOr<int64_t> bytes = ParseByteSize(absl::GetFlag(FLAGS_pool_bytes));
  if (!bytes.ok()) return BadFlag("pool_bytes", bytes.status().message());
  options.size_bytes = *bytes;
  const std::string pages = absl::GetFlag(FLAGS_huge_pages);
  if (pages == "never") {
    options.huge_pages = HugePages::kNever;
  } else if (pages == "require") {
    options.huge_pages = HugePages::kRequire;
  } else if (pages != "auto") {
    return BadFlag("huge_pages", absl::StrCat("'", pages, "' is none of auto, never, require"));
  }
  options.touch_threads = absl::GetFlag(FLAGS_pin_threads);
  if (options.touch_threads < 1 || options.touch_threads > 256) {
    return BadFlag("pin_threads", "it must be 1..256");
  }
  options.touch_threads =
      std::min(options.touch_threads, std::max(static_cast<int32_t>(get_nprocs()), 1));
  options.numa_node = absl::GetFlag(FLAGS_numa_node);
  return options;
}

absl::StatusOr<ServerOptions> ServerOptionsOfFlags() {
  ServerOptions options;
  options.version = kVersion;
  options.socket_path = absl::GetFlag(FLAGS_socket);
  options.tcp_addresses = absl::GetFlag(FLAGS_tcp);
  const std::string mode = absl::GetFlag(FLAGS_socket_mode);
  char* end = nullptr;
  const int64_t value = std::strtol(mode.c_str(), &end, 8);
  if (mode.empty() || *end != '\0' || value < 0 || value > 0777) {
    return BadFlag("socket_mode", absl::StrCat("'", mode, "' is no octal number in 0..0777"));
  }
  options.access = {.mode = static_cast<int32_t>(value),
                    .gid = absl::GetFlag(FLAGS_socket_gid),
                    .allow_world_writable = absl::GetFlag(FLAGS_allow_world_writable_socket)};
  if (absl::Status status = CheckSocketAccess(options.access); !status.ok()) {
    return BadFlag("socket_mode", status.message());
  }
  if (absl::Status status = CleanSocketPath(options.socket_path).status(); !status.ok()) {
    return BadFlag("socket", status.message());
  }
  if (absl::GetFlag(FLAGS_shutdown_grace) < absl::ZeroDuration() ||
      absl::GetFlag(FLAGS_shutdown_grace) > absl::Hours(1)) {
    return BadFlag("shutdown_grace", "it must be 0..1h");
  }
  return options;
}

absl::StatusOr<BackendOptions> BackendOptionsOfFlags() {
  BackendOptions options;
  options.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  const std::string memory = absl::GetFlag(FLAGS_device_memory);
  if (memory == "ipc") {
    options.gpu_memory = MemoryHandle::Transport::kCudaIpc;
  } else if (memory != "fd") {
    return BadFlag("device_memory", absl::StrCat("'", memory, "' is neither fd nor ipc"));
  }
  return options;
}

// Every attached segment and every connection is a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Waits for a signal or a reason to end. `signals` are blocked in every thread.
Failure WaitForEnd(const sigset_t& signals, const DeviceBackend& backend, HostPool& pool,
                   const Log& log) {
  for (bool ready = false;;) {
    const int signal = sigtimedwait(&signals, nullptr, &kTick);
    if (signal > 0) {
      log.Event("stopping", {{"signal", signal}});
      return {};
    }
    if (absl::Status health = backend.Health(); !health.ok()) return {kDeviceLost, health};
    const HostPool::Stats stats = pool.stats();
    if (stats.state == HostPool::State::kFailed) {
      return {kNoPool, pool.WaitReady(absl::InfinitePast())};
    }
    if (stats.state == HostPool::State::kReady && !ready) {
      ready = true;
      // Without 2 MiB pages GPUs gather rows at half the speed, and workers join slowly.
      log.Event("ready",
                {{"pool_bytes", stats.total_bytes}, {"in_2mib_pages_bytes", stats.huge_bytes}});
    }
  }
}

// Serves until a signal; returns the exit code.
int Serve(const ServerOptions& options, const sigset_t& signals, DeviceBackend* backend,
          HostPool* pool, const Clock* clock, const Log& log) {
  auto node = std::make_unique<Node>(NodeOptions{.version = kVersion}, clock, backend, pool);
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(options, {clock, node.get(), pool, backend, &log});
  if (!server.ok()) {
    return Fail(log, absl::IsAlreadyExists(server.status()) ? kSocketInUse : kNoSocket,
                server.status());
  }
  log.Event("listening", {{"addresses", absl::StrJoin((*server)->listen_addresses(), ",")},
                          {"boot_id", node->boot_id()},
                          {"pid", getpid()},
                          {"version", kVersion}});
  pool->Start([&log](int64_t pinned_bytes, int64_t total_bytes) {
    log.Event("pinning", {{"pinned_bytes", pinned_bytes}, {"total_bytes", total_bytes}});
  });
  const Failure failure = WaitForEnd(signals, *backend, *pool, log);
  int code = failure.code;
  if (!failure.status.ok()) Fail(log, code, failure.status);

  const absl::Duration grace =
      code == kDeviceLost ? kLostDeviceGrace : absl::GetFlag(FLAGS_shutdown_grace);
  // What does not end by itself is left to the kernel.
  const absl::StatusOr<std::unique_ptr<Watchdog>> watchdog =
      Watchdog::Start(grace + kWatchdogMargin, [&] {
        log.Event("stuck", {{"calls", absl::StrJoin((*server)->open_calls(), ",")},
                            {"exit_code", code == kStopped ? kStuck : code}});
        _exit(code == kStopped ? kStuck : code);
      });
  if (!watchdog.ok()) log.Event("no_watchdog", {{"status", watchdog.status().ToString()}});
  pool->Cancel();
  backend->StopRegistering();
  const std::vector<std::string> stuck = (*server)->Shutdown(grace);
  if (!stuck.empty()) {
    log.Event("calls_cancelled", {{"calls", absl::StrJoin(stuck, ",")}});
    if (code == kStopped) code = kStuck;
  }
  node.reset();
  log.Event("stopped", {{"exit_code", code}});
  return code;
}

int Main() {
  const SystemClock clock;
  const Log log(&clock);
  const absl::StatusOr<ServerOptions> options = ServerOptionsOfFlags();
  if (!options.ok()) return Fail(log, kBadCommandLine, options.status());
  const absl::StatusOr<HostPoolOptions> pool_options = PoolOptionsOfFlags();
  if (!pool_options.ok()) return Fail(log, kBadCommandLine, pool_options.status());
  const absl::StatusOr<BackendOptions> backend_options = BackendOptionsOfFlags();
  if (!backend_options.ok()) return Fail(log, kBadCommandLine, backend_options.status());

  // Taken by this thread alone, between its looks at devices and pool. Blocked before any other
  // thread is there, so that all inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  const absl::StatusOr<ChosenBackend> chosen =
      MakeBackend(absl::GetFlag(FLAGS_backend), *backend_options);
  if (!chosen.ok()) {
    return Fail(log, absl::IsInvalidArgument(chosen.status()) ? kBadCommandLine : kNoBackend,
                chosen.status());
  }
  log.Event("backend", {{"choice", chosen->note}});
  const absl::StatusOr<std::unique_ptr<HostPool>> pool =
      HostPool::Create(*pool_options, chosen->backend.get());
  if (!pool.ok()) return Fail(log, kNoPool, pool.status());
  return Serve(*options, signals, chosen->backend.get(), pool->get(), &clock, log);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(kvtier::kUsage);
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return absl::StrCat("kvtierd ", kvtier::kVersion, "\n"); };
  // What --help lists: the flags of this file.
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "server/main.cc");
  };
  absl::SetFlagsUsageConfig(std::move(usage));
  absl::ParseCommandLine(argc, argv);
  return kvtier::Main();
}
