#include "client/cli/views.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/format.h"

namespace kvtier::cli {
namespace {

std::string HitRate(const v1::Counters& counters) {
  return Percent(counters.has_hit_rate(), counters.hit_rate());
}

std::string HitRate(const v1::Window& window) {
  return Percent(window.has_hit_rate(), window.hit_rate());
}

std::string PoolLine(const v1::PoolStats& pool) {
  const double total = static_cast<double>(std::max<int64_t>(pool.total_bytes(), 1));
  // A newer daemon may have more states than this program knows.
  absl::string_view state = v1::PoolState_Name(pool.state());
  absl::ConsumePrefix(&state, "POOL_STATE_");
  return absl::StrFormat(
      "pool     %s of %s used (%s), largest free piece %s, %s%s\n", Bytes(pool.used_bytes()),
      Bytes(pool.total_bytes()), Percent(true, static_cast<double>(pool.used_bytes()) / total),
      Bytes(pool.largest_free_bytes()), state,
      pool.state() == v1::POOL_STATE_PINNING
          ? absl::StrCat(" ", Percent(true, static_cast<double>(pool.pinned_bytes()) / total))
          : "");
}

std::string NodeView(const v1::GetStatsResponse& stats) {
  const v1::Window& window = stats.window();
  return absl::StrCat(
      "daemon   boot ", stats.boot_id(), ", up ",
      Age(TimeOf(stats.time()) - TimeOf(stats.start_time())), ", ", stats.sessions(), " sessions",
      stats.draining() ? ", draining" : "", ", control queue ", stats.control_queue_depth(), "/",
      stats.control_queue_max(), "\n", PoolLine(stats.pool()), "lookups  ",
      Grouped(stats.counters().hits()), " hits, ", Grouped(stats.counters().misses()),
      " misses, hit rate ", HitRate(stats.counters()), " (lately ", HitRate(window), ")\n",
      "to GPU   ", Bytes(stats.counters().bytes_copied()), " in ",
      Grouped(stats.counters().rows_copied()), " rows, lately ",
      BytesPerSecond(window.bytes_copied_per_second()), "\n", "to host  ",
      Bytes(stats.counters().backed_up_bytes()), " in ", Grouped(stats.counters().backed_up_rows()),
      " rows, lately ", BytesPerSecond(window.backed_up_bytes_per_second()), "\n");
}

// What deserves a look, one a line.
std::string Warnings(const v1::Counters& counters) {
  std::string text;
  const auto warn = [&](int64_t count, const char* what) {
    if (count > 0) absl::StrAppend(&text, "note     ", Grouped(count), " ", what, "\n");
  };
  warn(counters.unsourced(), "misses past the end of the host pool (zeroed)");
  warn(counters.unbacked_reads(), "misses on rows that were never backed up (zeroed)");
  warn(counters.unplaced(), "misses that no hot slot could take");
  warn(counters.state_repairs(), "corrupt LRU entries refused");
  warn(counters.rejected_rows(), "batch rows with a request out of range");
  return text;
}

// Who takes how much of the pool: of interest where several share a node.
std::string UserLines(const v1::GetStatsResponse& stats) {
  if (stats.users_size() < 2) return "";
  std::string text;
  for (const v1::UserStats& user : stats.users()) {
    absl::StrAppend(&text, "user     ", user.has_uid() ? absl::StrCat(user.uid()) : "-", ": ",
                    user.sessions(), " sessions, ", user.caches(), " caches, ",
                    Bytes(user.pool_bytes()), " of the pool\n");
  }
  return text;
}

// "" where users have no quota.
std::string QuotaLine(const v1::GetNodeInfoResponse& info) {
  std::vector<std::string> parts;
  const auto add = [&parts](int64_t limit, const std::string& text) {
    if (limit > 0) parts.push_back(text);
  };
  add(info.sessions_per_uid_max(), absl::StrCat(info.sessions_per_uid_max(), " sessions"));
  add(info.caches_per_uid_max(), absl::StrCat(info.caches_per_uid_max(), " caches"));
  add(info.pool_bytes_per_uid_max(),
      absl::StrCat(Bytes(info.pool_bytes_per_uid_max()), " of the pool"));
  if (parts.empty()) return "";
  return absl::StrCat("quota    ", absl::StrJoin(parts, ", "), " for each user\n");
}

std::string CacheTable(const v1::GetStatsResponse& stats) {
  Table table({"CACHE", ">SESSIONS", ">REQUESTS", ">BLOCKS USED", ">KEPT", ">FREE", ">FREE RUN",
               ">HITS", ">MISSES", ">HIT RATE", ">LATELY", ">TO GPU", ">TO HOST", ">EVICTIONS/S"});
  for (const v1::CacheStats& cache : stats.caches()) {
    int64_t requests = 0;
    for (const v1::SessionCacheStats& session : cache.sessions()) requests += session.requests();
    table.Add({cache.cache(), absl::StrCat(cache.sessions_size()), absl::StrCat(requests),
               absl::StrCat(cache.blocks_used(), "/", cache.blocks_total()),
               absl::StrCat(cache.blocks_kept()), absl::StrCat(cache.blocks_free()),
               absl::StrCat(cache.largest_free_run_blocks()), Grouped(cache.counters().hits()),
               Grouped(cache.counters().misses()), HitRate(cache.counters()),
               HitRate(cache.window()), BytesPerSecond(cache.window().bytes_copied_per_second()),
               BytesPerSecond(cache.window().backed_up_bytes_per_second()),
               Rate(cache.window().evictions_per_second())});
  }
  return table.empty() ? "\nno caches\n" : absl::StrCat("\n", table.Text());
}

std::string GroupTable(const v1::CacheStats& cache) {
  Table table({">GROUP", ">STEPS", ">HITS", ">MISSES", ">HIT RATE", ">LATELY", ">ROWS COPIED",
               ">BYTES COPIED", ">BACKED UP", ">EVICTIONS", ">DROPPED", ">UNBACKED", ">UNPLACED"});
  for (const v1::GroupStats& group : cache.groups()) {
    const v1::Counters& c = group.counters();
    table.Add({absl::StrCat(group.group_index()), Grouped(c.steps()), Grouped(c.hits()),
               Grouped(c.misses()), HitRate(c), HitRate(group.window()), Grouped(c.rows_copied()),
               Bytes(c.bytes_copied()), Grouped(c.backed_up_rows()), Grouped(c.evictions()),
               Grouped(c.invalidated_copies()), Grouped(c.unbacked_reads()),
               Grouped(c.unplaced())});
  }
  return absl::StrCat("\n", table.Text());
}

std::string OperationTable(const v1::CacheStats& cache) {
  const auto quantile = [](const v1::OperationStats& operation, double fraction) {
    const int64_t microseconds = Quantile(operation, fraction);
    return microseconds < 0 ? std::string("-") : absl::StrCat("<= ", Latency(microseconds));
  };
  Table table({"OPERATION", ">COUNT", ">MEAN", ">P50", ">P99"});
  for (const v1::OperationStats& operation : cache.operations()) {
    table.Add(
        {operation.operation(), Grouped(operation.count()),
         operation.count() == 0 ? "-" : Latency(operation.sum_microseconds() / operation.count()),
         quantile(operation, 0.5), quantile(operation, 0.99)});
  }
  return absl::StrCat("\n", table.Text());
}

std::string SessionTable(const v1::CacheStats& cache) {
  Table table({"SESSION", "CLIENT", ">REQUESTS", ">IN FLIGHT", ">DEVICE", ">HITS", ">MISSES",
               ">HIT RATE", ">LATELY", ">TO GPU"});
  for (const v1::SessionCacheStats& session : cache.sessions()) {
    table.Add({session.session_id(), session.client_name(),
               absl::StrCat(session.requests(), "/", session.requests_max()),
               absl::StrCat(session.operations_in_flight()), Bytes(session.device_bytes()),
               Grouped(session.counters().hits()), Grouped(session.counters().misses()),
               HitRate(session.counters()), HitRate(session.window()),
               BytesPerSecond(session.window().bytes_copied_per_second())});
  }
  return table.empty() ? "\nno sessions\n" : absl::StrCat("\n", table.Text());
}

int LayerCount(const v1::CacheLayout& layout) {
  int layers = 0;
  for (const v1::LayerGroupLayout& group : layout.groups()) layers += group.layers_size();
  return layers;
}

}  // namespace

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

int64_t Quantile(const v1::OperationStats& operation, double fraction) {
  const double wanted = fraction * static_cast<double>(operation.count());
  int64_t seen = 0;
  for (int i = 0; i < operation.counts_size() && i < operation.bound_microseconds_size(); ++i) {
    seen += operation.counts(i);
    if (seen > 0 && static_cast<double>(seen) >= wanted) return operation.bound_microseconds(i);
  }
  return -1;
}

std::string StatsView(const v1::GetStatsResponse& stats, bool detailed) {
  std::string text = absl::StrCat(NodeView(stats), UserLines(stats), Warnings(stats.counters()),
                                  CacheTable(stats));
  if (detailed && stats.caches_size() == 1) {
    const v1::CacheStats& cache = stats.caches(0);
    absl::StrAppend(&text, GroupTable(cache), OperationTable(cache), SessionTable(cache));
  }
  return text;
}

std::string CachesView(const v1::ListCachesResponse& caches, absl::Time now) {
  Table table({"CACHE", ">OWNER", ">SESSIONS", ">LAYERS", ">GROUPS", ">BLOCKS", ">BLOCK SIZE",
               ">REQUESTS", ">TOP K", ">HOT SIZE", ">ROW BYTES", "EVICTION", "DTYPE", ">KEPT",
               ">ENDS IN"});
  for (const v1::CacheInfo& cache : caches.caches()) {
    const v1::CacheLayout& layout = cache.layout();
    if (layout.groups_size() == 0 || layout.groups(0).layers_size() == 0) continue;
    const v1::LayerGroupLayout& first = layout.groups(0);
    table.Add({cache.cache(), cache.has_owner_uid() ? absl::StrCat(cache.owner_uid()) : "-",
               absl::StrCat(cache.session_ids_size()), absl::StrCat(LayerCount(layout)),
               absl::StrCat(layout.groups_size()), absl::StrCat(layout.block_count()),
               absl::StrCat(layout.block_size()), absl::StrCat(layout.max_requests()),
               absl::StrCat(first.top_k()), absl::StrCat(first.hot_size()),
               absl::StrCat(first.layers(0).row_bytes()),
               layout.eviction_policy() == v1::EVICTION_POLICY_AGED ? "aged" : "lru",
               layout.dtype_tag().empty() ? "-" : layout.dtype_tag(),
               absl::StrCat(cache.blocks_kept()),
               cache.has_expires_time() ? Age(TimeOf(cache.expires_time()) - now) : "-"});
  }
  return table.empty() ? "no caches\n" : table.Text();
}

std::string SessionsView(const v1::ListSessionsResponse& sessions, absl::Time now) {
  Table table({"SESSION", "CLIENT", ">PID", ">UID", ">OPEN", "CACHES"});
  for (const v1::SessionInfo& session : sessions.sessions()) {
    table.Add({session.session_id(), session.client_name(),
               session.has_peer_pid() ? absl::StrCat(session.peer_pid()) : "-",
               session.has_peer_uid() ? absl::StrCat(session.peer_uid()) : "-",
               Age(now - TimeOf(session.opened_time())),
               session.caches_size() == 0 ? "-" : absl::StrJoin(session.caches(), ",")});
  }
  return table.empty() ? "no sessions\n" : table.Text();
}

std::string RequestsView(const std::vector<v1::RequestInfo>& requests) {
  Table table({"SESSION", "REQUEST", ">REGION", ">BLOCKS", ">RESERVED"});
  for (const v1::RequestInfo& request : requests) {
    table.Add({request.session_id(), request.request_id(), absl::StrCat(request.region()),
               absl::StrCat(request.blocks()), absl::StrCat(request.reserved_blocks())});
  }
  return table.empty() ? "no requests\n" : table.Text();
}

std::string InfoView(const v1::GetNodeInfoResponse& info) {
  std::string text = absl::StrCat(
      "version  ", info.version(), "\nboot     ", info.boot_id(), "\nprocess  ", info.pid(),
      ", started ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", TimeOf(info.start_time()), absl::UTCTimeZone()),
      "\nlistens  ", absl::StrJoin(info.listen_addresses(), ", "), "\nmetrics  ",
      info.metrics_address().empty() ? "off" : info.metrics_address(), "\nlimits   ",
      info.sessions_max(), " sessions, ", info.caches_max(), " caches\n", QuotaLine(info),
      PoolLine(info.pool()));
  for (const v1::DeviceInfo& device : info.devices()) {
    absl::StrAppend(&text, "device   ", device.uuid(), " (", device.backend(), ", ", device.name(),
                    "): ", Bytes(device.used_bytes()), " of ", Bytes(device.memory_bytes()),
                    " held\n");
  }
  return text;
}

}  // namespace kvtier::cli
