// kvtierd: command line, signals, exit codes.
//
// Started in this order: device backend, host pool (mapped only), node, server; then the pool is
// pinned, while the server answers already. Stopped in the reverse order.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/config/command_line.h"
#include "server/config/print.h"
#include "server/core/clock.h"
#include "server/core/error.h"
#include "server/core/out_of_memory.h"
#include "server/core/shared_memory.h"
#include "server/core/status_macros.h"
#include "server/device/make_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/memory_trim.h"
#include "server/options.h"
#include "server/reload.h"
#include "server/service/log.h"
#include "server/service/server.h"
#include "server/service/service_manager.h"
#include "server/service/tcp_credentials.h"
#include "server/service/watchdog.h"
#include "server/session/node.h"

namespace kvtier {
namespace {

// In the usage text below; keep them the same.
enum ExitCode : int {
  kStopped = 0,
  kBadCommandLine = 1,
  kNoSocket = 2,
  kSocketInUse = 3,
  kNoBackend = 4,
  kNoPool = 5,
  kDeviceLost = 6,
  kStuck = 7,
};
constexpr char kUsage[] =
    "The KV tiering daemon of a node.\n\n"
    "  kvtierd [--config=FILE] [--NAME=VALUE...]\n\n"
    "  --config=FILE      read settings from a file (docs/CONFIGURATION.md)\n"
    "  --validate         say whether the configuration is right, and end\n"
    "  --print_config     print what holds, with where it comes from, and end\n"
    "  --print_schema     print a JSON schema of the file, and end\n"
    "  --print_reference  print the table of settings in Markdown, and end\n"
    "  --help, --version\n\n"
    "Each setting is a flag, a key of the file, and a variable: --pool_bytes, pool_bytes,\n"
    "KVTIERD_POOL_BYTES. Flags go over variables, those over the file.\n\n"
    "Signals: SIGTERM and SIGINT end it, SIGHUP reads the configuration again.\n\n"
    "Exit codes:\n"
    "  0  stopped by SIGTERM or SIGINT, in order\n"
    "  1  the command line or the configuration is wrong\n"
    "  2  the socket or a TCP address cannot be served: its path, folder, rights or port\n"
    "  3  another process serves at the socket\n"
    "  4  there is no such device backend here\n"
    "  5  the host pool cannot be had or pinned\n"
    "  6  a device was lost; start again\n"
    "  7  stopped, but something did not end within the grace; the log names it\n\n"
    "Settings:\n";

// How often the devices and the pool are looked at.
constexpr timespec kTick = {.tv_sec = 0, .tv_nsec = 200'000'000};
// What is left of a process whose device is lost ends soon, for the supervisor's sake.
constexpr absl::Duration kLostDeviceGrace = absl::Seconds(1);
constexpr absl::Duration kWatchdogMargin = absl::Milliseconds(500);
// A piece of the pool is pinned well within it; then the service manager hears of the next.
constexpr absl::Duration kPinningPatience = absl::Minutes(2);
constexpr char kReady[] = "serving";

// Both are logged and ended with.
struct Failure {
  int code = kStopped;
  absl::Status status;
};

int Fail(const Log& log, int code, const absl::Status& status) {
  log.Event(LogLevel::kError, "failed",
            {{"exit_code", code},
             {"reason", ErrorReasonOf(status)},
             {"message", std::string(status.message())}});
  return code;
}

constexpr size_t kConfigBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadFile(absl::string_view path) {
  const std::string name(path);
  const UniqueFd fd(open(name.c_str(), O_RDONLY | O_CLOEXEC));
  std::string content;
  char piece[4096];
  ssize_t size = fd.valid() ? 1 : -1;
  while (size > 0 && content.size() <= kConfigBytesMax) {
    size = read(fd.get(), piece, sizeof(piece));
    if (size > 0) content.append(piece, static_cast<size_t>(size));
  }
  if (size < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  if (content.size() > kConfigBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": more than ", kConfigBytesMax, " bytes; is it a configuration?"));
  }
  return content;
}

CommandSources SourcesOf(int argc, char** argv) {
  CommandSources sources;
  for (int i = 1; i < argc; ++i) sources.arguments.emplace_back(argv[i]);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    sources.environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  sources.read_file = ReadFile;
  return sources;
}

// What is asked for instead of serving. False: nothing.
bool Print(const Command& command) {
  std::string text;
  switch (command.action) {
    case CommandAction::kServe:
      return false;
    case CommandAction::kValidate:
      text = "valid\n";
      break;
    case CommandAction::kPrintConfig:
      text = PrintConfig(command.values);
      break;
    case CommandAction::kPrintSchema:
      text = PrintSchema();
      break;
    case CommandAction::kPrintReference:
      text = PrintReference();
      break;
    case CommandAction::kHelp:
      text = absl::StrCat(kUsage, PrintFlags());
      break;
    case CommandAction::kVersion:
      text = absl::StrCat("kvtierd ", kVersion, "\n");
      break;
  }
  fputs(text.c_str(), stdout);
  return true;
}

// Every attached segment and every connection is a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// As service managers count time.
int64_t MonotonicMicroseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

// Waits for a signal or a reason to end. `signals` are blocked in every thread.
Failure WaitForEnd(const sigset_t& signals, const DeviceBackend& backend, HostPool& pool,
                   Node* node, const ServiceManager& manager, Reloader* reloader, const Log& log) {
  MemoryTrimmer trimmer;
  const SystemClock clock;
  for (bool ready = false;;) {
    trimmer.Tick(clock.Now());
    const int signal = sigtimedwait(&signals, nullptr, &kTick);
    if (signal == SIGHUP) {
      if (ready) manager.Reloading(MonotonicMicroseconds());
      reloader->Reload();
      if (ready) manager.Ready(kReady);
    } else if (signal > 0) {
      log.Event("stopping", {{"signal", signal}});
      manager.Stopping(absl::StrCat("stopping: signal ", signal));
      return {};
    }
    if (absl::Status health = backend.Health(); !health.ok()) return {kDeviceLost, health};
    for (const std::string& cache : node->EndExpiredCaches()) {
      log.Event("cache_expired", {{"cache", cache}});
    }
    const HostPool::Stats stats = pool.stats();
    if (stats.state == HostPool::State::kFailed) {
      return {kNoPool, pool.WaitReady(absl::InfinitePast())};
    }
    if (stats.state == HostPool::State::kReady && !ready) {
      ready = true;
      // Without 2 MiB pages GPUs gather rows at half the speed, and workers join slowly.
      log.Event("ready",
                {{"pool_bytes", stats.total_bytes}, {"in_2mib_pages_bytes", stats.huge_bytes}});
      manager.Ready(kReady);
    }
  }
}

// Takes over what the last daemon left, and says so.
absl::Status AdoptCaches(const HostPool& pool, Node* node, const Log& log) {
  if (pool.folder() == nullptr) return absl::OkStatus();
  std::vector<std::string> dropped = pool.folder()->dropped();
  KVTIER_ASSIGN_OR_RETURN(const std::vector<std::string> more, node->AdoptCaches());
  dropped.insert(dropped.end(), more.begin(), more.end());
  for (const std::string& what : dropped) {
    log.Event(LogLevel::kWarning, "dropped", {{"what", what}});
  }
  const absl::StatusOr<NodeSnapshot> kept = node->Snapshot("");
  log.Event("pool_kept", {{"caches", kept.ok() ? kept->caches.size() : 0},
                          {"earlier_workers", node->earlier_workers() ? "yes" : "no"}});
  return absl::OkStatus();
}

// What a running daemon is told when its configuration was read again.
void Apply(const DaemonOptions& options, Log* log, Node* node, Server* server) {
  log->SetLevel(options.log_level);
  log->SetFormat(options.log_format);
  node->SetLimits({options.node.sessions_max, options.node.caches_max, options.node.user_quota});
  server->SetRules(options.server.rules);
}

void WarnOfInsecure(const ServerOptions& options, const Log& log) {
  std::vector<std::string> addresses =
      options.tls.given() ? std::vector<std::string>() : options.tcp_addresses;
  if (!options.metrics_address.empty()) addresses.push_back(options.metrics_address);
  for (const std::string& address : addresses) {
    if (IsLoopback(address)) continue;
    log.Event(LogLevel::kWarning, "insecure_address",
              {{"address", address}, {"why", "whoever reaches it may look; there is no TLS"}});
  }
}

// Serves until a signal; returns the exit code.
int Serve(const DaemonOptions& options, const Command& command, const CommandSources& sources,
          const sigset_t& signals, DeviceBackend* backend, HostPool* pool, const Clock* clock,
          ServiceManager* manager, Log* shared_log) {
  const Log& log = *shared_log;
  auto node = std::make_unique<Node>(options.node, clock, backend, pool);
  if (absl::Status adopted = AdoptCaches(*pool, node.get(), log); !adopted.ok()) {
    return Fail(log, kNoPool, adopted);
  }
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(options.server, {clock, node.get(), pool, backend, &log,
                                     [manager, clock] { manager->Heartbeat(clock->Now()); }});
  if (!server.ok()) {
    return Fail(log, absl::IsAlreadyExists(server.status()) ? kSocketInUse : kNoSocket,
                server.status());
  }
  log.Event("listening", {{"addresses", absl::StrJoin((*server)->listen_addresses(), ",")},
                          {"metrics", (*server)->metrics_address()},
                          {"boot_id", node->boot_id()},
                          {"pid", getpid()},
                          {"version", kVersion}});
  WarnOfInsecure(options.server, log);
  pool->Start([&log, manager](int64_t pinned_bytes, int64_t total_bytes) {
    log.Event("pinning", {{"pinned_bytes", pinned_bytes}, {"total_bytes", total_bytes}});
    manager->Starting(absl::StrCat("pinned ", pinned_bytes, " of ", total_bytes, " bytes"),
                      kPinningPatience);
  });
  absl::Duration shutdown_grace = options.shutdown_grace;
  Reloader reloader(sources, command.values, &log, [&](const DaemonOptions& reloaded) {
    Apply(reloaded, shared_log, node.get(), server->get());
    shutdown_grace = reloaded.shutdown_grace;
  });
  const Failure failure =
      WaitForEnd(signals, *backend, *pool, node.get(), *manager, &reloader, log);
  int code = failure.code;
  if (!failure.status.ok()) {
    Fail(log, code, failure.status);
    manager->Stopping(failure.status.message());
  }

  const absl::Duration grace = code == kDeviceLost ? kLostDeviceGrace : shutdown_grace;
  // What does not end by itself is left to the kernel.
  const absl::StatusOr<std::unique_ptr<Watchdog>> watchdog =
      Watchdog::Start(grace + kWatchdogMargin, [&] {
        log.Event(LogLevel::kError, "stuck",
                  {{"calls", absl::StrJoin((*server)->open_calls(), ",")},
                   {"exit_code", code == kStopped ? kStuck : code}});
        _exit(code == kStopped ? kStuck : code);
      });
  if (!watchdog.ok())
    log.Event(LogLevel::kWarning, "no_watchdog", {{"status", watchdog.status().ToString()}});
  pool->Cancel();
  backend->StopRegistering();
  const std::vector<std::string> stuck = (*server)->Shutdown(grace);
  if (!stuck.empty()) {
    log.Event(LogLevel::kWarning, "calls_cancelled", {{"calls", absl::StrJoin(stuck, ",")}});
    if (code == kStopped) code = kStuck;
  }
  node.reset();
  log.Event("stopped", {{"exit_code", code}});
  return code;
}

int Main(const CommandSources& sources) {
  AbortWhenOutOfMemory();
  LimitHeaps();
  const SystemClock clock;
  Log log(&clock);
  const absl::StatusOr<Command> command = ReadCommand(sources);
  if (!command.ok()) return Fail(log, kBadCommandLine, command.status());
  const absl::StatusOr<DaemonOptions> options = DaemonOptionsOf(command->values);
  if (!options.ok()) return Fail(log, kBadCommandLine, options.status());
  if (Print(*command)) return kStopped;
  log.SetLevel(options->log_level);
  log.SetFormat(options->log_format);
  for (const std::string& variable : command->unknown_variables) {
    log.Event(LogLevel::kWarning, "unknown_environment", {{"variable", variable}});
  }

  // Taken by this thread alone, between its looks at devices and pool. Blocked before any other
  // thread is there, so that all inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  ServiceManager manager = ServiceManager::FromEnvironment();

  const absl::StatusOr<ChosenBackend> chosen = MakeBackend(options->backend_name, options->backend);
  if (!chosen.ok()) {
    return Fail(log, absl::IsInvalidArgument(chosen.status()) ? kBadCommandLine : kNoBackend,
                chosen.status());
  }
  log.Event("backend", {{"choice", chosen->note}});
  const absl::StatusOr<std::unique_ptr<HostPool>> pool =
      HostPool::Create(options->pool, chosen->backend.get());
  if (!pool.ok()) return Fail(log, kNoPool, pool.status());
  return Serve(*options, *command, sources, signals, chosen->backend.get(), pool->get(), &clock,
               &manager, &log);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(kvtier::SourcesOf(argc, argv)); }
