// The configuration as the daemon uses it: every setting under its name, typed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/setting_values.h"

namespace kvtier {

struct DaemonConfig {
  std::string socket;
  int32_t socket_mode = 0;
  int32_t socket_gid = -1;
  bool allow_world_writable_socket = false;
  std::vector<int32_t> allowed_uids;
  std::vector<int32_t> viewer_uids, operator_uids;
  std::vector<std::string> tcp;
  std::string tls_certificate, tls_key, tls_client_ca;
  std::vector<std::string> tls_viewers, tls_operators;
  bool allow_insecure_tcp = false;
  int32_t tcp_connections_per_address_max = 0;
  std::string metrics_address;
  bool allow_insecure_metrics = false;
  std::string backend;
  int32_t cpu_threads = 0;
  std::string device_memory;
  int64_t pool_bytes = 0;
  std::string huge_pages;
  int32_t numa_node = -1;
  int32_t pin_threads = 0;
  std::string pool_path;
  std::string pool_mismatch;
  absl::Duration reattach_duration;
  absl::Duration retain_duration_max;
  int32_t sessions_max = 0;
  int32_t caches_max = 0;
  int32_t sessions_per_uid_max = 0, caches_per_uid_max = 0;
  int64_t pool_bytes_per_uid_max = 0;
  int32_t operations_in_flight_max = 0;
  int32_t control_threads = 0;
  int32_t control_queue_max = 0;
  absl::Duration shutdown_grace;
  std::string log_level;
  std::string log_format;
};

// Each value was checked when it was set.
DaemonConfig DaemonConfigOf(const SettingValues& values);

}  // namespace kvtier
