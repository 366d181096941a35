// The daemon's state as Prometheus metrics. docs/METRICS.md lists them; a test holds one against
// the other.
//
// Labels are bounded: caches by name (caches_max), layer groups, devices, states, methods, codes.
// Sessions and requests come and go, so that their numbers are in GetStats alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/metric_family.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/call_log.h"
#include "server/service/connection_counts.h"
#include "server/session/node.h"
#include "server/session/types.h"

namespace kvtier {

// One moment, read without waiting for any device.
struct MetricsInput {
  struct Device {
    DeviceInfo info;
    int64_t used_bytes = 0;
  };

  std::string version;
  std::string boot_id;
  absl::Time start_time;
  bool ready = false;
  NodeSnapshot node;
  NodeLimits limits;
  HostPool::Stats pool;
  std::vector<Device> devices;
  int32_t control_queue_depth = 0;
  int32_t control_queue_max = 0;
  std::vector<CallLog::Row> calls;
  size_t connections_open = 0, connections_max = 0;
  const ConnectionCounts* connections = nullptr;
  int64_t log_lines_suppressed = 0;
};

std::vector<prometheus::MetricFamily> MetricsOf(const MetricsInput& input);

}  // namespace kvtier
