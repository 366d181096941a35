#include "server/session/node.h"

#include <utility>

#include "server/core/status_macros.h"
#include "server/session/node_impl.h"

namespace kvtier {

Node::Node(NodeOptions options, const Clock* clock, DeviceBackend* backend, HostPool* pool)
    : impl_(std::make_unique<Impl>(std::move(options), clock, backend, pool)) {}

Node::~Node() = default;

const std::string& Node::boot_id() const { return impl_->boot_id(); }

absl::Time Node::start_time() const { return impl_->start_time(); }

void Node::SetLimits(const NodeLimits& limits) { impl_->SetLimits(limits); }

NodeLimits Node::limits() const { return impl_->limits(); }

absl::StatusOr<std::vector<std::string>> Node::AdoptCaches() { return impl_->AdoptCaches(); }

std::vector<std::string> Node::EndExpiredCaches() { return impl_->EndExpiredCaches(); }

bool Node::earlier_workers() const { return impl_->earlier_workers(); }

absl::StatusOr<std::string> Node::OpenSession(absl::string_view client_name, Peer peer,
                                              std::shared_ptr<SessionObserver> observer) {
  return impl_->OpenSession(client_name, std::move(peer), std::move(observer));
}

void Node::CloseSession(absl::string_view session_id) { impl_->CloseSession(session_id); }

absl::Status Node::EvictSession(absl::string_view session_id, absl::string_view message) {
  return impl_->EvictSession(session_id, message);
}

void Node::Drain(absl::string_view message) { impl_->Drain(message); }

bool Node::draining() const { return impl_->draining(); }

absl::Status Node::CloseAllSessions(absl::string_view message, absl::Time deadline) {
  return impl_->CloseAllSessions(message, deadline);
}

absl::StatusOr<UniqueFd> Node::RedeemToken(absl::string_view token, const Peer& peer) {
  return impl_->RedeemToken(token, peer);
}

absl::Status Node::CheckCaller(absl::string_view session_id, const Peer& peer) const {
  return impl_->CheckCaller(session_id, peer);
}

absl::StatusOr<AttachResult> Node::AttachCache(absl::string_view session_id,
                                               absl::string_view cache, const CacheLayout& layout,
                                               absl::string_view device_uuid, absl::Time deadline,
                                               const AttachOptions& options) {
  return impl_->AttachCache(session_id, cache, layout, device_uuid, deadline, options);
}

absl::StatusOr<std::vector<KeptBlockInfo>> Node::ListKeptBlocks(absl::string_view session_id,
                                                                absl::string_view cache,
                                                                int32_t first,
                                                                int32_t count_max) const {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  return attachment->cache()->ListKept(first, count_max);
}

absl::StatusOr<bool> Node::DetachCache(absl::string_view session_id, absl::string_view cache,
                                       absl::Time deadline) {
  return impl_->DetachCache(session_id, cache, deadline);
}

absl::StatusOr<int32_t> Node::AdmitRequest(absl::string_view session_id, absl::string_view cache,
                                           absl::string_view request_id, int32_t reserve_blocks,
                                           const Patience& patience) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  KVTIER_RETURN_IF_ERROR(impl_->CheckDeadline(patience.deadline()));
  return impl_->AdmitRequest(*attachment, request_id, reserve_blocks, patience);
}

absl::StatusOr<int32_t> Node::ReleaseRequest(absl::string_view session_id, absl::string_view cache,
                                             absl::string_view request_id,
                                             const Patience& patience) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  KVTIER_RETURN_IF_ERROR(impl_->CheckDeadline(patience.deadline()));
  return impl_->ReleaseRequest(*attachment, request_id, patience);
}

absl::StatusOr<AssignResult> Node::AssignBlocks(absl::string_view session_id,
                                                absl::string_view cache,
                                                absl::string_view request_id, int32_t count,
                                                const std::vector<int32_t>& shared_blocks,
                                                const std::vector<int32_t>& shared_generations,
                                                const Patience& patience,
                                                const std::vector<int64_t>& tags) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  KVTIER_RETURN_IF_ERROR(impl_->CheckDeadline(patience.deadline()));
  return impl_->AssignBlocks(*attachment, request_id, count, shared_blocks, shared_generations,
                             tags, patience);
}

absl::StatusOr<int32_t> Node::FreeBlocks(absl::string_view session_id, absl::string_view cache,
                                         absl::string_view request_id,
                                         const std::vector<int32_t>& blocks,
                                         const Patience& patience) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  KVTIER_RETURN_IF_ERROR(impl_->CheckDeadline(patience.deadline()));
  return impl_->FreeBlocks(*attachment, request_id, blocks, patience);
}

absl::StatusOr<int64_t> Node::InvalidateBlocks(absl::string_view session_id,
                                               absl::string_view cache,
                                               const std::vector<int32_t>& blocks,
                                               const Patience& patience) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  KVTIER_RETURN_IF_ERROR(impl_->CheckDeadline(patience.deadline()));
  return impl_->InvalidateBlocks(*attachment, blocks, patience);
}

absl::StatusOr<int32_t> Node::InlineRowPositions(absl::string_view session_id,
                                                 absl::string_view cache, int32_t group) const {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  return impl_->InlineRowPositions(*attachment, group);
}

absl::StatusOr<int64_t> Node::SwapIn(absl::string_view session_id, const SwapInCall& call,
                                     OperationDone done) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, call.cache));
  return impl_->SwapIn(*attachment, call, std::move(done));
}

absl::StatusOr<int64_t> Node::ReplayPlan(absl::string_view session_id, const ReplayPlanCall& call,
                                         OperationDone done) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, call.cache));
  return impl_->ReplayPlan(*attachment, call, std::move(done));
}

absl::StatusOr<int64_t> Node::Backup(absl::string_view session_id, const BackupCall& call,
                                     OperationDone done) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, call.cache));
  return impl_->Backup(*attachment, call, std::move(done));
}

absl::Status Node::OnTicket(absl::string_view session_id, absl::string_view cache, int64_t ticket,
                            OperationDone done) {
  KVTIER_ASSIGN_OR_RETURN(const auto attachment, impl_->Find(session_id, cache));
  if (!done) done = [](const OperationOutcome&) {};
  return attachment->tickets().OnTicket(ticket, std::move(done));
}

absl::StatusOr<NodeSnapshot> Node::Snapshot(absl::string_view cache) const {
  return impl_->Snapshot(cache);
}

std::vector<SessionSnapshot> Node::Sessions() const { return impl_->Sessions(); }

absl::StatusOr<std::vector<RequestSnapshot>> Node::Requests(absl::string_view cache) const {
  return impl_->Requests(cache);
}

bool Node::RunReaper() { return impl_->RunReaper(); }

int64_t Node::DeviceBytesUsed(absl::string_view device_uuid) const {
  return impl_->device_use().BytesOf(device_uuid);
}

std::string Node::DeviceStandsStill() const {
  return impl_->device_use().StandsStill(impl_->clock().Now(), kDevicePatience);
}

}  // namespace kvtier
