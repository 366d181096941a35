// What the daemon's parts are told, out of the configuration.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/setting_values.h"
#include "server/device/make_backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/log.h"
#include "server/service/server.h"
#include "server/session/node.h"

namespace kvtier {

inline constexpr char kVersion[] = "0.1.0";

struct DaemonOptions {
  std::string backend_name;
  BackendOptions backend;
  HostPoolOptions pool;
  NodeOptions node;
  ServerOptions server;
  absl::Duration shutdown_grace;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// Also checks what one value alone does not show. Errors: INVALID_ARGUMENT, saying where the value
// came from.
absl::StatusOr<DaemonOptions> DaemonOptionsOf(const SettingValues& values);

}  // namespace kvtier
