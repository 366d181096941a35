#include "server/service/admin_service.h"

#include <unistd.h>

#include <algorithm>

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "server/core/error.h"
#include "server/core/mutex.h"
#include "server/core/status_macros.h"
#include "server/service/call.h"
#include "server/service/convert.h"

namespace kvtier {
namespace {

constexpr absl::Duration kIntervalMin = absl::Milliseconds(100);
constexpr absl::Duration kIntervalMax = absl::Hours(1);
constexpr int32_t kPageSizeMax = 1000;

// One answer, a pause, the next. A client that does not read holds up its own call only.
class WatchReactor final : public grpc::ServerWriteReactor<v1::GetStatsResponse> {
 public:
  WatchReactor(const AdminService* service, std::string cache, absl::Duration interval)
      : service_(service), cache_(std::move(cache)), interval_(interval) {
    Next();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    if (!ok || cancelled_) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
      return;
    }
    waiting_ = true;
    alarm_.Set(absl::ToChronoTime(absl::Now() + interval_), [this](bool) { OnAlarm(); });
  }

  void OnCancel() override {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    if (waiting_) alarm_.Cancel();
  }

  void OnDone() override { delete this; }

 private:
  void OnAlarm() {
    {
      MutexLock lock(&mutex_);
      waiting_ = false;
      if (cancelled_) {
        Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
        return;
      }
    }
    Next();
  }

  void Next() {
    response_.Clear();
    const absl::Status status = service_->FillStats(cache_, &response_);
    if (status.ok()) {
      StartWrite(&response_);
    } else {
      Finish(ToGrpcStatus(status));
    }
  }

  const AdminService* const service_;
  const std::string cache_;
  const absl::Duration interval_;
  v1::GetStatsResponse response_;
  grpc::Alarm alarm_;
  Mutex mutex_;
  bool waiting_ KVTIER_GUARDED_BY(mutex_) = false;
  bool cancelled_ KVTIER_GUARDED_BY(mutex_) = false;
};

// A stream that ends at once.
class FailedWatch final : public grpc::ServerWriteReactor<v1::GetStatsResponse> {
 public:
  explicit FailedWatch(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

AdminService::AdminService(AdminServiceOptions options, Node* node, const HostPool* pool,
                           const DeviceBackend* backend)
    : options_(std::move(options)), node_(node), pool_(pool), backend_(backend) {}

absl::Status AdminService::FillStats(const std::string& cache,
                                     v1::GetStatsResponse* response) const {
  KVTIER_ASSIGN_OR_RETURN(const NodeSnapshot snapshot, node_->Snapshot(cache));
  response->set_boot_id(node_->boot_id());
  *response->mutable_start_time() = TimeToProto(node_->start_time());
  *response->mutable_time() = TimeToProto(snapshot.time);
  *response->mutable_counters() = CountersToProto(snapshot.total);
  *response->mutable_pool() = PoolToProto(pool_->stats());
  for (const CacheSnapshot& c : snapshot.caches) {
    *response->add_caches() = CacheStatsToProto(c);
  }
  response->set_sessions(snapshot.sessions);
  response->set_draining(snapshot.draining);
  return absl::OkStatus();
}

AdminService::Unary* AdminService::GetStats(Context* context, const v1::GetStatsRequest* request,
                                            v1::GetStatsResponse* response) {
  return Answer(context, FillStats(request->cache(), response));
}

grpc::ServerWriteReactor<v1::GetStatsResponse>* AdminService::WatchStats(
    Context*, const v1::WatchStatsRequest* request) {
  const absl::Duration interval =
      request->has_interval() ? DurationFromProto(request->interval()) : absl::Seconds(1);
  if (interval < kIntervalMin || interval > kIntervalMax) {
    return new FailedWatch(
        FieldInvalid("interval", absl::FormatDuration(interval), "100ms..1h"));
  }
  return new WatchReactor(this, request->cache(), interval);
}

AdminService::Unary* AdminService::ListCaches(Context* context, const v1::ListCachesRequest*,
                                              v1::ListCachesResponse* response) {
  const absl::StatusOr<NodeSnapshot> snapshot = node_->Snapshot("");
  if (!snapshot.ok()) return Answer(context, snapshot.status());
  for (const CacheSnapshot& cache : snapshot->caches) {
    v1::CacheInfo* info = response->add_caches();
    info->set_cache(cache.cache);
    *info->mutable_layout() = LayoutToProto(cache.layout);
    for (const SessionCacheSnapshot& session : cache.sessions) {
      info->add_session_ids(session.session_id);
    }
  }
  return Answer(context, absl::OkStatus());
}

AdminService::Unary* AdminService::ListSessions(Context* context, const v1::ListSessionsRequest*,
                                                v1::ListSessionsResponse* response) {
  for (const SessionSnapshot& session : node_->Sessions()) {
    v1::SessionInfo* info = response->add_sessions();
    info->set_session_id(session.session_id);
    info->set_client_name(session.client_name);
    if (session.peer.pid >= 0) info->set_peer_pid(session.peer.pid);
    if (session.peer.uid >= 0) info->set_peer_uid(session.peer.uid);
    *info->mutable_opened_time() = TimeToProto(session.opened_time);
    for (const std::string& cache : session.caches) info->add_caches(cache);
  }
  return Answer(context, absl::OkStatus());
}

AdminService::Unary* AdminService::ListRequests(Context* context,
                                                const v1::ListRequestsRequest* request,
                                                v1::ListRequestsResponse* response) {
  const int32_t page_size = request->has_page_size() ? request->page_size() : 100;
  if (page_size < 1 || page_size > kPageSizeMax) {
    return Answer(context, FieldInvalid("page_size", absl::StrCat(page_size),
                                        absl::StrCat("1..", kPageSizeMax)));
  }
  int64_t first = 0;
  if (!request->page_token().empty() &&
      (!absl::SimpleAtoi(request->page_token(), &first) || first < 0)) {
    return Answer(context,
                  FieldInvalid("page_token", request->page_token(), "one of the page before"));
  }
  const absl::StatusOr<std::vector<RequestSnapshot>> requests = node_->Requests(request->cache());
  if (!requests.ok()) return Answer(context, requests.status());
  const auto count = static_cast<int64_t>(requests->size());
  const int64_t end = std::min(count, first + page_size);
  for (int64_t i = first; i < end; ++i) {
    const RequestSnapshot& from = (*requests)[static_cast<size_t>(i)];
    v1::RequestInfo* info = response->add_requests();
    info->set_session_id(from.session_id);
    info->set_request_id(from.request_id);
    info->set_region(from.region);
    info->set_blocks(from.blocks);
    info->set_reserved_blocks(from.reserved_blocks);
  }
  if (end < count) response->set_next_page_token(absl::StrCat(end));
  return Answer(context, absl::OkStatus());
}

AdminService::Unary* AdminService::GetNodeInfo(Context* context, const v1::GetNodeInfoRequest*,
                                               v1::GetNodeInfoResponse* response) {
  response->set_version(options_.version);
  response->set_boot_id(node_->boot_id());
  *response->mutable_start_time() = TimeToProto(node_->start_time());
  for (const DeviceInfo& device : backend_->Devices()) {
    v1::DeviceInfo* info = response->add_devices();
    info->set_uuid(device.uuid);
    info->set_name(device.name);
    info->set_backend(device.kind == BackendKind::kCuda ? "cuda" : "cpu");
    info->set_memory_bytes(device.memory_bytes);
    info->set_used_bytes(node_->DeviceBytesUsed(device.uuid));
  }
  *response->mutable_pool() = PoolToProto(pool_->stats());
  for (const std::string& address : options_.listen_addresses) {
    response->add_listen_addresses(address);
  }
  response->set_pid(getpid());
  return Answer(context, absl::OkStatus());
}

AdminService::Unary* AdminService::Drain(Context* context, const v1::DrainRequest* request,
                                         v1::DrainResponse* response) {
  node_->Drain(request->message());
  response->set_sessions(static_cast<int32_t>(node_->Sessions().size()));
  return Answer(context, absl::OkStatus());
}

AdminService::Unary* AdminService::EvictSession(Context* context,
                                                const v1::EvictSessionRequest* request,
                                                v1::EvictSessionResponse*) {
  return Answer(context, node_->EvictSession(request->session_id(), request->message()));
}

}  // namespace kvtier
