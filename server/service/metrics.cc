#include "server/service/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/service/process_metrics.h"
#include "server/service/to_proto.h"

namespace kvtier {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::vector<ClientMetric::Label>;

MetricFamily Family(absl::string_view name, MetricType type, absl::string_view help) {
  MetricFamily family;
  family.name = std::string(name);
  family.help = std::string(help);
  family.type = type;
  return family;
}

void Add(MetricFamily* family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family->type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family->metric.push_back(std::move(metric));
}

MetricFamily Single(absl::string_view name, MetricType type, absl::string_view help, double value,
                    Labels labels = {}) {
  MetricFamily family = Family(name, type, help);
  Add(&family, std::move(labels), value);
  return family;
}

double Count(int64_t value) { return static_cast<double>(value); }

void AddNode(const MetricsInput& in, std::vector<MetricFamily>* to) {
  const auto gauge = [to](absl::string_view name, absl::string_view help, double value) {
    to->push_back(Single(name, MetricType::Gauge, help, value));
  };
  const std::string backend = in.devices.empty() ? "" : BackendName(in.devices.front().info.kind);
  to->push_back(Single("kvtierd_build_info", MetricType::Gauge, "Always 1; what runs here.", 1,
                       {{"version", in.version}, {"backend", backend}}));
  to->push_back(Single("kvtierd_instance_info", MetricType::Gauge,
                       "Always 1; boot_id changes with every start.", 1,
                       {{"boot_id", in.boot_id}}));
  gauge("kvtierd_start_time_seconds", "When the daemon started, since the epoch.",
        absl::ToDoubleSeconds(in.start_time - absl::UnixEpoch()));
  gauge("kvtierd_ready", "1 while work is taken: pool ready, device alive, not draining.",
        in.ready ? 1 : 0);
  gauge("kvtierd_draining", "1 once nothing new is admitted.", in.node.draining ? 1 : 0);
  gauge("kvtierd_sessions", "Open sessions.", in.node.sessions);
  gauge("kvtierd_sessions_limit", "Sessions that may be open.", in.limits.sessions_max);
  gauge("kvtierd_caches", "Caches.", Count(static_cast<int64_t>(in.node.caches.size())));
  gauge("kvtierd_caches_limit", "Caches that may be there.", in.limits.caches_max);
  gauge("kvtierd_control_queue_depth", "Calls that wait for a thread of the control executor.",
        in.control_queue_depth);
  gauge("kvtierd_control_queue_limit", "Calls that may wait; more are refused.",
        in.control_queue_max);
  to->push_back(Single("kvtierd_log_lines_suppressed_total", MetricType::Counter,
                       "Lines of the log left out because there were too many of one event.",
                       Count(in.log_lines_suppressed)));
}

void AddConnections(const MetricsInput& in, std::vector<MetricFamily>* to) {
  MetricFamily open = Family("kvtierd_connections", MetricType::Gauge,
                             "Connections: served, and waiting until their peers have spoken.");
  Add(&open, {{"state", "served"}}, static_cast<double>(in.connections_open));
  Add(&open, {{"state", "waiting"}}, Count(in.connections->waiting()));
  to->push_back(std::move(open));
  to->push_back(Single("kvtierd_connections_limit", MetricType::Gauge,
                       "Connections that may be served.", static_cast<double>(in.connections_max)));
  MetricFamily refused = Family("kvtierd_connections_refused_total", MetricType::Counter,
                                "Connections that were ended or not taken, by reason.");
  for (size_t i = 0; i < kRefusalCount; ++i) {
    const auto why = static_cast<Refusal>(i);
    Add(&refused, {{"why", std::string(RefusalName(why))}}, Count(in.connections->refused(why)));
  }
  to->push_back(std::move(refused));
}

void AddPool(const HostPool::Stats& pool, std::vector<MetricFamily>* to) {
  MetricFamily state = Family("kvtierd_pool_state", MetricType::Gauge,
                              "1 for the state that the host pool is in, 0 for the others.");
  constexpr std::pair<const char*, HostPool::State> kStates[] = {
      {"pinning", HostPool::State::kPinning},
      {"ready", HostPool::State::kReady},
      {"failed", HostPool::State::kFailed}};
  for (const auto& [name, value] : kStates) {
    Add(&state, {{"state", name}}, pool.state == value ? 1 : 0);
  }
  to->push_back(std::move(state));
  const auto gauge = [to](absl::string_view name, absl::string_view help, int64_t value) {
    to->push_back(Single(name, MetricType::Gauge, help, Count(value)));
  };
  gauge("kvtierd_pool_size_bytes", "Size of the host pool.", pool.total_bytes);
  gauge("kvtierd_pool_pinned_bytes", "Of the host pool: touched and pinned.", pool.pinned_bytes);
  gauge("kvtierd_pool_used_bytes", "Of the host pool: given to caches.", pool.used_bytes);
  gauge("kvtierd_pool_largest_free_bytes", "Largest piece of the host pool that a cache could get.",
        pool.largest_free_bytes);
  gauge("kvtierd_pool_huge_page_bytes", "Of the host pool: in pages of 2 MiB.", pool.huge_bytes);
}

void AddDevices(const std::vector<MetricsInput::Device>& devices, std::vector<MetricFamily>* to) {
  MetricFamily memory =
      Family("kvtierd_device_memory_bytes", MetricType::Gauge, "Memory of the device.");
  MetricFamily used = Family("kvtierd_device_used_bytes", MetricType::Gauge,
                             "Of the device's memory: held by hot buffers and their state.");
  for (const MetricsInput::Device& device : devices) {
    Add(&memory, {{"device", device.info.uuid}}, Count(device.info.memory_bytes));
    Add(&used, {{"device", device.info.uuid}}, Count(device.used_bytes));
  }
  to->push_back(std::move(memory));
  to->push_back(std::move(used));
}

// A sum over the sessions of a cache.
template <typename Member>
double SumOf(const CacheSnapshot& cache, Member SessionCacheSnapshot::*member) {
  int64_t sum = 0;
  for (const SessionCacheSnapshot& session : cache.sessions) sum += session.*member;
  return Count(sum);
}

struct CacheGauge {
  const char* name;
  const char* help;
  double (*read)(const CacheSnapshot& cache);
};
constexpr CacheGauge kCacheGauges[] = {
    {"kvtierd_cache_sessions", "Sessions attached to the cache.",
     [](const CacheSnapshot& c) { return Count(static_cast<int64_t>(c.sessions.size())); }},
    {"kvtierd_cache_requests", "Admitted requests, all sessions: regions of hot buffer in use.",
     [](const CacheSnapshot& c) { return SumOf(c, &SessionCacheSnapshot::requests); }},
    {"kvtierd_cache_requests_limit", "Regions of hot buffer, all sessions.",
     [](const CacheSnapshot& c) {
       return Count(static_cast<int64_t>(c.sessions.size()) * c.layout.max_requests);
     }},
    {"kvtierd_cache_operations_in_flight", "Operations enqueued and not answered, all sessions.",
     [](const CacheSnapshot& c) { return SumOf(c, &SessionCacheSnapshot::operations_in_flight); }},
    {"kvtierd_cache_device_bytes", "Hot buffers and their state, all sessions.",
     [](const CacheSnapshot& c) { return SumOf(c, &SessionCacheSnapshot::device_bytes); }},
    {"kvtierd_cache_host_bytes", "The cache's part of the host pool.",
     [](const CacheSnapshot& c) { return Count(c.host_bytes); }},
    {"kvtierd_cache_block_capacity", "Blocks of the cache.",
     [](const CacheSnapshot& c) { return Count(c.layout.block_count); }},
    {"kvtierd_cache_largest_free_run_blocks", "Longest run of neighbouring free blocks.",
     [](const CacheSnapshot& c) { return Count(c.largest_free_run_blocks); }},
};

struct GroupCounter {
  const char* name;
  const char* help;
  Counter counter;
};
constexpr GroupCounter kGroupCounters[] = {
    {"kvtierd_steps_total", "Swap-ins with at least one real row.", Counter::kSteps},
    {"kvtierd_hits_total", "Lookups found in the hot buffer (rows).", Counter::kHits},
    {"kvtierd_misses_total", "Lookups not found in the hot buffer (rows).", Counter::kMisses},
    {"kvtierd_newest_total", "Positions that named the newest slot.", Counter::kNewest},
    {"kvtierd_masked_total", "Positions that were masked.", Counter::kInvalid},
    {"kvtierd_duplicates_total", "Positions that repeated a lookup.", Counter::kDuplicates},
    {"kvtierd_unsourced_total", "Misses past the end of the host pool, zeroed (rows).",
     Counter::kUnsourced},
    {"kvtierd_unbacked_reads_total", "Misses on rows that were never backed up, zeroed (rows).",
     Counter::kUnbackedReads},
    {"kvtierd_unplaced_total", "Misses that no hot slot could take (rows).", Counter::kUnplaced},
    {"kvtierd_rows_copied_total", "Misses whose bytes were copied to a hot row (rows).",
     Counter::kRowsCopied},
    {"kvtierd_rows_shared_total", "Rows copied from another request's hot row.",
     Counter::kRowsShared},
    {"kvtierd_rows_kept_total", "Rows copied that had stayed on the device as newest rows.",
     Counter::kRowsKept},
    {"kvtierd_copied_bytes_total", "Bytes copied from the host pool to the device.",
     Counter::kBytesCopied},
    {"kvtierd_backed_up_rows_total", "Rows written to the host pool.", Counter::kBackedUpRows},
    {"kvtierd_backed_up_bytes_total", "Bytes copied from the device to the host pool.",
     Counter::kBackedUpBytes},
    {"kvtierd_state_repairs_total", "Corrupt LRU entries met and refused.", Counter::kStateRepairs},
    {"kvtierd_rejected_rows_total", "Batch rows whose request was out of range.",
     Counter::kRejectedRows},
    {"kvtierd_invalidated_copies_total", "Hot rows dropped because their block was assigned again.",
     Counter::kInvalidatedCopies},
    {"kvtierd_evictions_total", "Owned hot slots given to another row.", Counter::kEvictions},
};

ClientMetric HistogramOf(const LatencyCounts& latencies, Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < latencies.counts.size(); ++i) {
    cumulative += static_cast<uint64_t>(latencies.counts[i]);
    if (i == kLatencyBoundsMicroseconds.size()) break;  // +Inf is the count itself
    metric.histogram.bucket.push_back(
        {cumulative, static_cast<double>(kLatencyBoundsMicroseconds[i]) / 1e6});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = static_cast<double>(latencies.sum_microseconds) / 1e6;
  return metric;
}

void AddCaches(const std::vector<CacheSnapshot>& caches, std::vector<MetricFamily>* to) {
  for (const CacheGauge& gauge : kCacheGauges) {
    MetricFamily family = Family(gauge.name, MetricType::Gauge, gauge.help);
    for (const CacheSnapshot& cache : caches) {
      Add(&family, {{"cache", cache.cache}}, gauge.read(cache));
    }
    to->push_back(std::move(family));
  }
  MetricFamily blocks =
      Family("kvtierd_cache_blocks", MetricType::Gauge, "Blocks of the cache, by state.");
  MetricFamily durations =
      Family("kvtierd_operation_duration_seconds", MetricType::Histogram,
             "Operations that the daemon ran for sessions, from enqueueing to done.");
  for (const CacheSnapshot& cache : caches) {
    const auto add = [&](const char* state, int32_t count) {
      Add(&blocks, {{"cache", cache.cache}, {"state", state}}, count);
    };
    add("used", cache.blocks_used);
    add("free", cache.blocks_free);
    add("reserved", cache.blocks_reserved);
    add("quarantined", cache.blocks_quarantined);
    add("kept", cache.blocks_kept);
    for (int32_t kind = 0; kind < kOperationKindCount; ++kind) {
      durations.metric.push_back(HistogramOf(
          cache.latencies[kind], {{"cache", cache.cache},
                                  {"operation", OperationName(static_cast<OperationKind>(kind))}}));
    }
  }
  to->push_back(std::move(blocks));
  to->push_back(std::move(durations));
  for (const GroupCounter& counter : kGroupCounters) {
    MetricFamily family = Family(counter.name, MetricType::Counter, counter.help);
    for (const CacheSnapshot& cache : caches) {
      for (size_t group = 0; group < cache.groups.size(); ++group) {
        // A worker writes these as well, and may write anything.
        const int64_t value = std::max<int64_t>(cache.groups[group][counter.counter], 0);
        Add(&family, {{"cache", cache.cache}, {"group", absl::StrCat(group)}}, Count(value));
      }
    }
    to->push_back(std::move(family));
  }
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const MetricsInput& input) {
  std::vector<MetricFamily> families;
  AddNode(input, &families);
  AddConnections(input, &families);
  AddPool(input.pool, &families);
  AddDevices(input.devices, &families);
  AddCaches(input.node.caches, &families);
  MetricFamily calls = Family("kvtierd_calls_total", MetricType::Counter,
                              "Calls that ended, by method and gRPC code.");
  for (const CallLog::Row& row : input.calls) {
    Add(&calls, {{"method", std::string(row.method)}, {"code", std::string(row.code)}},
        Count(row.count));
  }
  families.push_back(std::move(calls));
  for (const ProcessMetric& metric : ReadProcessMetrics()) {
    families.push_back(Single(metric.name,
                              metric.is_counter ? MetricType::Counter : MetricType::Gauge,
                              metric.help, metric.value));
  }
  return families;
}

}  // namespace kvtier
