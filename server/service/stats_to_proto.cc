#include "server/service/stats_to_proto.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/service/retention_proto.h"
#include "server/service/to_proto.h"

namespace kvtier {
namespace {

constexpr int32_t kPageSizeDefault = 100;
constexpr int32_t kPageSizeMax = 1000;

Counts SumOf(const std::vector<Counts>& groups) {
  Counts sum;
  for (const Counts& group : groups) sum += group;
  return sum;
}

// For CacheStats and SessionCacheStats: by group, and their sum.
template <typename Stats>
void FillCounters(const std::vector<Counts>& groups, Stats* to) {
  *to->mutable_counters() = ToProto(SumOf(groups));
  for (size_t i = 0; i < groups.size(); ++i) {
    v1::GroupStats* group = to->add_groups();
    group->set_group_index(static_cast<int32_t>(i));
    *group->mutable_counters() = ToProto(groups[i]);
  }
}

v1::OperationStats ToProto(OperationKind kind, const LatencyCounts& latencies) {
  v1::OperationStats to;
  to.set_operation(OperationName(kind));
  int64_t count = 0;
  for (const int64_t bound : kLatencyBoundsMicroseconds) to.add_bound_microseconds(bound);
  for (const int64_t each : latencies.counts) {
    to.add_counts(each);
    count += each;
  }
  to.set_count(count);
  to.set_sum_microseconds(latencies.sum_microseconds);
  return to;
}

// Rows of one region in all groups.
int64_t RegionRows(const CacheLayout& layout) {
  int64_t rows = 0;
  for (const GroupLayout& group : layout.groups) rows += group.hot_size;
  return rows;
}

v1::CacheStats CacheToProto(const CacheSnapshot& cache) {
  v1::CacheStats to;
  to.set_cache(cache.cache);
  FillCounters(cache.groups, &to);
  for (const SessionCacheSnapshot& session : cache.sessions) {
    v1::SessionCacheStats* stats = to.add_sessions();
    stats->set_session_id(session.session_id);
    stats->set_client_name(session.client_name);
    FillCounters(session.groups, stats);
    stats->set_requests(session.requests);
    stats->set_operations_in_flight(session.operations_in_flight);
    stats->set_device_bytes(session.device_bytes);
    stats->set_requests_max(cache.layout.max_requests);
    stats->set_hot_rows_total(cache.layout.max_requests * RegionRows(cache.layout));
    stats->set_hot_rows_used(session.requests * RegionRows(cache.layout));
  }
  to.set_blocks_total(cache.layout.block_count);
  to.set_blocks_used(cache.blocks_used);
  to.set_blocks_free(cache.blocks_free);
  to.set_blocks_reserved(cache.blocks_reserved);
  to.set_blocks_quarantined(cache.blocks_quarantined);
  to.set_blocks_kept(cache.blocks_kept);
  to.set_largest_free_run_blocks(cache.largest_free_run_blocks);
  to.set_host_bytes(cache.host_bytes);
  for (int32_t kind = 0; kind < kOperationKindCount; ++kind) {
    *to.add_operations() = ToProto(static_cast<OperationKind>(kind), cache.latencies[kind]);
  }
  return to;
}

v1::PoolState StateOf(HostPool::State state) {
  switch (state) {
    case HostPool::State::kPinning:
      return v1::POOL_STATE_PINNING;
    case HostPool::State::kReady:
      return v1::POOL_STATE_READY;
    case HostPool::State::kFailed:
      return v1::POOL_STATE_FAILED;
  }
  return v1::POOL_STATE_UNSPECIFIED;
}

// Requests are listed in this order.
struct Key {
  std::string session_id, request_id;
};

auto Tie(const Key& key) { return std::tie(key.session_id, key.request_id); }

std::string EncodeToken(const Key& last) {
  // No session id has a NUL in it.
  return absl::WebSafeBase64Escape(
      absl::StrCat(last.session_id, absl::string_view("\0", 1), last.request_id));
}

absl::StatusOr<Key> DecodeToken(const std::string& token) {
  std::string text;
  if (absl::WebSafeBase64Unescape(token, &text)) {
    const size_t end = text.find('\0');
    if (end != std::string::npos) return Key{text.substr(0, end), text.substr(end + 1)};
  }
  return FieldInvalid("page_token", absl::StrCat("\"", absl::Utf8SafeCHexEscape(token), "\""),
                      "the next_page_token of the page before, or empty");
}

}  // namespace

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp to;
  absl::Duration rest = time - absl::UnixEpoch();
  to.set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
  to.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return to;
}

v1::Counters ToProto(const Counts& counts) {
  v1::Counters to;
  to.set_steps(counts[Counter::kSteps]);
  to.set_hits(counts[Counter::kHits]);
  to.set_misses(counts[Counter::kMisses]);
  to.set_newest(counts[Counter::kNewest]);
  to.set_invalid(counts[Counter::kInvalid]);
  to.set_duplicates(counts[Counter::kDuplicates]);
  to.set_unsourced(counts[Counter::kUnsourced]);
  to.set_unbacked_reads(counts[Counter::kUnbackedReads]);
  to.set_unplaced(counts[Counter::kUnplaced]);
  to.set_rows_copied(counts[Counter::kRowsCopied]);
  to.set_bytes_copied(counts[Counter::kBytesCopied]);
  to.set_backed_up_rows(counts[Counter::kBackedUpRows]);
  to.set_backed_up_bytes(counts[Counter::kBackedUpBytes]);
  to.set_state_repairs(counts[Counter::kStateRepairs]);
  to.set_rejected_rows(counts[Counter::kRejectedRows]);
  to.set_invalidated_copies(counts[Counter::kInvalidatedCopies]);
  to.set_evictions(counts[Counter::kEvictions]);
  to.set_rows_shared(counts[Counter::kRowsShared]);
  to.set_rows_kept(counts[Counter::kRowsKept]);
  // In floating point: a worker writes these counters as well, and may write anything.
  const double hits = static_cast<double>(counts[Counter::kHits]);
  const double lookups = hits + static_cast<double>(counts[Counter::kMisses]);
  if (hits >= 0 && lookups > 0 && hits <= lookups) to.set_hit_rate(hits / lookups);
  return to;
}

v1::PoolStats ToProto(const HostPool::Stats& stats) {
  v1::PoolStats to;
  to.set_state(StateOf(stats.state));
  to.set_total_bytes(stats.total_bytes);
  to.set_pinned_bytes(stats.pinned_bytes);
  to.set_used_bytes(stats.used_bytes);
  to.set_largest_free_bytes(stats.largest_free_bytes);
  to.set_page_bytes(stats.page_bytes);
  return to;
}

v1::GetStatsResponse StatsToProto(const NodeSnapshot& node, const HostPool::Stats& pool,
                                  absl::string_view boot_id, absl::Time start_time) {
  v1::GetStatsResponse to;
  to.set_boot_id(std::string(boot_id));
  *to.mutable_start_time() = ToProto(start_time);
  *to.mutable_time() = ToProto(node.time);
  *to.mutable_counters() = ToProto(node.total);
  *to.mutable_pool() = ToProto(pool);
  for (const CacheSnapshot& cache : node.caches) *to.add_caches() = CacheToProto(cache);
  to.set_sessions(node.sessions);
  to.set_draining(node.draining);
  for (const UserSnapshot& user : node.users) {
    v1::UserStats* const one = to.add_users();
    if (user.uid >= 0) one->set_uid(user.uid);
    one->set_sessions(user.sessions);
    one->set_caches(user.caches);
    one->set_pool_bytes(user.pool_bytes);
  }
  return to;
}

v1::ListCachesResponse CachesToProto(const NodeSnapshot& node) {
  v1::ListCachesResponse to;
  for (const CacheSnapshot& cache : node.caches) {
    v1::CacheInfo* info = to.add_caches();
    info->set_cache(cache.cache);
    *info->mutable_layout() = ToProto(cache.layout);
    for (const SessionCacheSnapshot& session : cache.sessions) {
      info->add_session_ids(session.session_id);
    }
    info->set_blocks_kept(cache.blocks_kept);
    if (cache.access.owner_uid >= 0) info->set_owner_uid(cache.access.owner_uid);
    *info->mutable_share() = ToProto(cache.access.sharing);
    *info->mutable_retain() = ToProto(cache.retention);
    if (cache.expires_time.has_value())
      *info->mutable_expires_time() = ToProto(*cache.expires_time);
  }
  return to;
}

v1::ListSessionsResponse SessionsToProto(const std::vector<SessionSnapshot>& sessions) {
  v1::ListSessionsResponse to;
  for (const SessionSnapshot& session : sessions) {
    v1::SessionInfo* info = to.add_sessions();
    info->set_session_id(session.session_id);
    info->set_client_name(session.client_name);
    if (session.peer.pid >= 0) info->set_peer_pid(session.peer.pid);
    if (session.peer.uid >= 0) info->set_peer_uid(session.peer.uid);
    *info->mutable_opened_time() = ToProto(session.opened_time);
    for (const std::string& cache : session.caches) info->add_caches(cache);
  }
  return to;
}

absl::Status CheckListRequests(const v1::ListRequestsRequest& request) {
  if (request.cache().empty()) return FieldInvalid("cache", "empty", "the name of a cache");
  if (request.has_page_size() && (request.page_size() < 1 || request.page_size() > kPageSizeMax)) {
    return FieldInvalid("page_size", absl::StrCat(request.page_size()),
                        absl::StrCat("1..", kPageSizeMax));
  }
  if (request.page_token().empty()) return absl::OkStatus();
  return DecodeToken(request.page_token()).status();
}

absl::StatusOr<v1::ListRequestsResponse> RequestsToProto(
    const std::vector<RequestSnapshot>& requests, const v1::ListRequestsRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckListRequests(request));
  std::vector<const RequestSnapshot*> ordered;
  for (const RequestSnapshot& each : requests) ordered.push_back(&each);
  const auto key_of = [](const RequestSnapshot* each) {
    return std::tie(each->session_id, each->request_id);
  };
  std::sort(ordered.begin(), ordered.end(),
            [&](const auto* a, const auto* b) { return key_of(a) < key_of(b); });

  auto next = ordered.begin();
  if (!request.page_token().empty()) {
    KVTIER_ASSIGN_OR_RETURN(const Key last, DecodeToken(request.page_token()));
    next = std::find_if(ordered.begin(), ordered.end(),
                        [&](const auto* each) { return key_of(each) > Tie(last); });
  }
  v1::ListRequestsResponse to;
  const int32_t page_size = request.has_page_size() ? request.page_size() : kPageSizeDefault;
  for (; next != ordered.end() && to.requests_size() < page_size; ++next) {
    v1::RequestInfo* info = to.add_requests();
    info->set_session_id((*next)->session_id);
    info->set_request_id((*next)->request_id);
    info->set_region((*next)->region);
    info->set_blocks((*next)->blocks);
    info->set_reserved_blocks((*next)->reserved_blocks);
  }
  if (next != ordered.end()) {
    const RequestSnapshot& last = **(next - 1);
    to.set_next_page_token(EncodeToken({last.session_id, last.request_id}));
  }
  return to;
}

}  // namespace kvtier
