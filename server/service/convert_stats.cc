// The part of convert.h that operators see.

#include "server/service/convert.h"

namespace kvtier {

v1::Counters CountersToProto(const Counts& counts) {
  v1::Counters proto;
  proto.set_steps(counts[Counter::kSteps]);
  proto.set_hits(counts[Counter::kHits]);
  proto.set_misses(counts[Counter::kMisses]);
  proto.set_newest(counts[Counter::kNewest]);
  proto.set_invalid(counts[Counter::kInvalid]);
  proto.set_duplicates(counts[Counter::kDuplicates]);
  proto.set_unsourced(counts[Counter::kUnsourced]);
  proto.set_unbacked_reads(counts[Counter::kUnbackedReads]);
  proto.set_unplaced(counts[Counter::kUnplaced]);
  proto.set_rows_copied(counts[Counter::kRowsCopied]);
  proto.set_bytes_copied(counts[Counter::kBytesCopied]);
  proto.set_backed_up_rows(counts[Counter::kBackedUpRows]);
  proto.set_backed_up_bytes(counts[Counter::kBackedUpBytes]);
  proto.set_state_repairs(counts[Counter::kStateRepairs]);
  proto.set_rejected_rows(counts[Counter::kRejectedRows]);
  proto.set_invalidated_copies(counts[Counter::kInvalidatedCopies]);
  proto.set_evictions(counts[Counter::kEvictions]);
  const int64_t lookups = counts[Counter::kHits] + counts[Counter::kMisses];
  if (lookups > 0) {
    proto.set_hit_rate(static_cast<double>(counts[Counter::kHits]) /
                       static_cast<double>(lookups));
  }
  return proto;
}

v1::PoolStats PoolToProto(const HostPool::Stats& stats) {
  v1::PoolStats proto;
  switch (stats.state) {
    case HostPool::State::kPinning:
      proto.set_state(v1::POOL_STATE_PINNING);
      break;
    case HostPool::State::kReady:
      proto.set_state(v1::POOL_STATE_READY);
      break;
    case HostPool::State::kFailed:
      proto.set_state(v1::POOL_STATE_FAILED);
      break;
  }
  proto.set_total_bytes(stats.total_bytes);
  proto.set_pinned_bytes(stats.pinned_bytes);
  proto.set_used_bytes(stats.used_bytes);
  proto.set_largest_free_bytes(stats.largest_free_bytes);
  proto.set_page_bytes(stats.page_bytes);
  return proto;
}

namespace {

// Adds each group to `repeated`; returns the sum.
template <typename Repeated>
v1::Counters GroupsToProto(const std::vector<Counts>& groups, Repeated* repeated) {
  Counts total;
  for (size_t g = 0; g < groups.size(); ++g) {
    v1::GroupStats* proto = repeated->Add();
    proto->set_group_index(static_cast<int32_t>(g));
    *proto->mutable_counters() = CountersToProto(groups[g]);
    total += groups[g];
  }
  return CountersToProto(total);
}

}  // namespace

v1::CacheStats CacheStatsToProto(const CacheSnapshot& cache) {
  v1::CacheStats proto;
  proto.set_cache(cache.cache);
  *proto.mutable_counters() = GroupsToProto(cache.groups, proto.mutable_groups());
  for (const SessionCacheSnapshot& session : cache.sessions) {
    v1::SessionCacheStats* to = proto.add_sessions();
    to->set_session_id(session.session_id);
    to->set_client_name(session.client_name);
    *to->mutable_counters() = GroupsToProto(session.groups, to->mutable_groups());
    to->set_requests(session.requests);
    to->set_operations_in_flight(session.operations_in_flight);
    to->set_device_bytes(session.device_bytes);
  }
  proto.set_blocks_total(cache.layout.block_count);
  proto.set_blocks_used(cache.blocks_used);
  proto.set_blocks_free(cache.blocks_free);
  proto.set_blocks_reserved(cache.blocks_reserved);
  proto.set_blocks_quarantined(cache.blocks_quarantined);
  proto.set_largest_free_run_blocks(cache.largest_free_run_blocks);
  proto.set_host_bytes(cache.host_bytes);
  return proto;
}

google::protobuf::Timestamp TimeToProto(absl::Time time) {
  const absl::Duration since = time - absl::UnixEpoch();
  google::protobuf::Timestamp proto;
  proto.set_seconds(absl::ToInt64Seconds(since));
  proto.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(since - absl::Seconds(proto.seconds()))));
  return proto;
}

absl::Duration DurationFromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace kvtier
