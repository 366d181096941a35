#include "server/options.h"

#include <sys/sysinfo.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/config/daemon_config.h"
#include "server/service/metrics_server.h"
#include "server/service/tcp_credentials.h"
#include "server/service/unix_socket.h"

namespace kvtier {
namespace {

absl::Status Refuse(const SettingValues& values, absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(values.Get(name).origin, ": ", name, ": ", why));
}

HostPoolOptions PoolOptionsOf(const DaemonConfig& config) {
  HostPoolOptions options;
  options.size_bytes = config.pool_bytes;
  options.huge_pages = config.huge_pages == "never"     ? HugePages::kNever
                       : config.huge_pages == "require" ? HugePages::kRequire
                                                        : HugePages::kAuto;
  options.touch_threads =
      std::min(config.pin_threads, std::max(static_cast<int32_t>(get_nprocs()), 1));
  options.numa_node = config.numa_node;
  options.folder = config.pool_path;
  options.drop_mismatch = config.pool_mismatch == "drop";
  return options;
}

BackendOptions BackendOptionsOf(const DaemonConfig& config) {
  BackendOptions options;
  options.cpu_threads = config.cpu_threads;
  if (config.device_memory == "ipc") options.gpu_memory = MemoryHandle::Transport::kCudaIpc;
  return options;
}

ServerOptions ServerOptionsOf(const DaemonConfig& config) {
  ServerOptions options;
  options.version = kVersion;
  options.socket_path = config.socket;
  options.access = {.mode = config.socket_mode,
                    .gid = config.socket_gid,
                    .allow_world_writable = config.allow_world_writable_socket};
  options.rules = {.allowed_uids = config.allowed_uids,
                   .viewer_uids = config.viewer_uids,
                   .operator_uids = config.operator_uids,
                   .tls_viewers = config.tls_viewers,
                   .tls_operators = config.tls_operators};
  options.tcp_addresses = config.tcp;
  options.tls = {.certificate = config.tls_certificate,
                 .key = config.tls_key,
                 .client_ca = config.tls_client_ca};
  options.tcp_connections_per_address_max = config.tcp_connections_per_address_max;
  options.metrics_address = config.metrics_address;
  options.control_threads = config.control_threads;
  options.control_queue_max = config.control_queue_max;
  return options;
}

absl::Status CheckMetrics(const DaemonConfig& config) {
  const std::string& address = config.metrics_address;
  if (address.empty()) return absl::OkStatus();
  if (absl::Status status = CheckMetricsAddress(address); !status.ok()) return status;
  if (config.allow_insecure_metrics || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      address,
      " can be reached from other machines, and there is no TLS: have a proxy in front of "
      "it, or let anybody there read with --allow_insecure_metrics"));
}

LogLevel LevelOf(const std::string& name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (name == LogLevelName(level)) return level;
  }
  return LogLevel::kError;
}

}  // namespace

absl::StatusOr<DaemonOptions> DaemonOptionsOf(const SettingValues& values) {
  const DaemonConfig config = DaemonConfigOf(values);
  DaemonOptions options = {
      .backend_name = config.backend,
      .backend = BackendOptionsOf(config),
      .pool = PoolOptionsOf(config),
      .node = {.version = kVersion,
               .sessions_max = config.sessions_max,
               .caches_max = config.caches_max,
               .user_quota = {.sessions_max = config.sessions_per_uid_max,
                              .caches_max = config.caches_per_uid_max,
                              .pool_bytes_max = config.pool_bytes_per_uid_max},
               .operations_in_flight_max = config.operations_in_flight_max,
               .reattach_duration = config.reattach_duration,
               .retain_duration_max = config.retain_duration_max},
      .server = ServerOptionsOf(config),
      .shutdown_grace = config.shutdown_grace,
      .log_level = LevelOf(config.log_level),
      .log_format = config.log_format == "json" ? LogFormat::kJson : LogFormat::kText,
  };
  if (absl::Status status = CheckSocketAccess(options.server.access); !status.ok()) {
    return Refuse(values, "socket_mode", status.message());
  }
  if (absl::Status status = CleanSocketPath(config.socket).status(); !status.ok()) {
    return Refuse(values, "socket", status.message());
  }
  if (absl::Status status = CheckTcp(config.tcp, options.server.tls, config.allow_insecure_tcp);
      !status.ok()) {
    return Refuse(values, options.server.tls.given() ? "tls_certificate" : "tcp", status.message());
  }
  if (absl::Status status = CheckMetrics(config); !status.ok()) {
    return Refuse(values, "metrics_address", status.message());
  }
  return options;
}

}  // namespace kvtier
