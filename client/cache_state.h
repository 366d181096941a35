// What a Cache, its Requests and its Steps share. Internal to client/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache.h"
#include "client/cache_shape.h"
#include "client/connection.h"
#include "client/device.h"
#include "client/mutex.h"
#include "client/segment_map.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"

namespace kvtier::client {

class CacheState {
 public:
  CacheState(std::shared_ptr<Connection> connection, std::string name,
             const v1::AttachCacheResponse& answer, CacheShape shape,
             std::unique_ptr<Device> device, CacheMemory memory);
  ~CacheState();
  CacheState(const CacheState&) = delete;
  CacheState& operator=(const CacheState&) = delete;

  const Connection& connection() const { return *connection_; }
  const std::string& name() const { return name_; }
  const v1::CacheLayout& layout() const { return layout_; }
  const v1::Device& device_info() const { return device_info_; }
  bool created() const { return created_; }
  int32_t blocks_kept() const { return blocks_kept_; }
  const CacheShape& shape() const { return shape_; }
  const CacheMemory& memory() const { return *memory_; }

  // Tells the daemon and lets no call through any more. Idempotent; nothing in a forked child.
  void Detach();

  // OK if an RPC about this cache may be made.
  absl::Status CheckCall() const;
  // Errors: FIELD_INVALID.
  absl::Status CheckGroup(int32_t group) const;
  absl::Status CheckRows(int32_t num_rows) const;
  absl::Status CheckLayers(int32_t group, const std::optional<LayerSpan>& layers) const;

  // One RPC whose request has the fields session_id and cache.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const char* name,
                                grpc::Status (v1::KvTier::Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                Request request) const {
    if (absl::Status status = CheckCall(); !status.ok()) return status;
    Address(&request);
    return connection_->Call(name, method, request, connection_->options().call_timeout);
  }

  // One RPC of the data plane, in order with `stream` where there is one.
  template <typename Result, typename Request, typename Response>
  absl::StatusOr<Result> CallOnStream(
      const char* name,
      grpc::Status (v1::KvTier::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      Request request, DeviceStreamRef stream) KVTIER_CLIENT_EXCLUDES(mutex_) {
    if (stream != nullptr) {
      absl::StatusOr<int32_t> number = SignalDaemon(stream);
      if (!number.ok()) return number.status();
      request.set_after_worker(*number);
    }
    absl::StatusOr<Response> answer = Call(name, method, std::move(request));
    if (!answer.ok()) return answer.status();
    if (stream != nullptr) {
      absl::Status status = WaitForDaemon(answer->ticket(), stream);
      if (!status.ok()) return status;
    }
    return Result{answer->ticket(), answer->completed()};
  }

  // Checked messages of the RPC plane. Errors: FIELD_INVALID.
  absl::StatusOr<v1::SwapInRequest> SwapInMessage(int32_t group, int32_t num_rows,
                                                  const SwapInOptions& options, bool wait) const;
  absl::StatusOr<v1::ReplayPlanRequest> ReplayPlanMessage(int32_t group, int32_t num_rows,
                                                          const std::optional<LayerSpan>& layers,
                                                          bool wait) const;
  absl::StatusOr<v1::BackupRequest> BackupMessage(int32_t num_rows, bool wait) const;
  v1::WaitTicketRequest WaitTicketMessage(int64_t ticket) const;

  // Runs `work(device)` alone, if in-process work may read (or also write) the memory.
  template <typename Work>
  absl::Status RunKernel(bool writes_host, const Work& work) KVTIER_CLIENT_EXCLUDES(mutex_) {
    if (absl::Status status = connection_->CheckMemory(writes_host); !status.ok()) return status;
    MutexLock lock(&mutex_);
    if (detached_) return DetachedError();
    return work(*device_);
  }
  // May in-process work write the memory? For graphs that were captured when it might.
  absl::Status CheckMemory(bool writes_host) const { return connection_->CheckMemory(writes_host); }

  // The number that the daemon may wait for: written when all that `stream` has now is done.
  absl::StatusOr<int32_t> SignalDaemon(DeviceStreamRef stream) KVTIER_CLIENT_EXCLUDES(mutex_);
  // What is enqueued on `stream` from now on comes after `ticket`.
  absl::Status WaitForDaemon(int64_t ticket, DeviceStreamRef stream) KVTIER_CLIENT_EXCLUDES(mutex_);
  // The daemon is gone: lets streams go on that wait for it. Takes no lock, because whoever
  // enqueues may be held up by such a stream.
  void ReleaseWaits();
  // The same for a while, for what the daemon's device still writes after its death.
  void KeepReleasingWaits();

  // Reads hot memory without running anything. `device()` may be used beside kernels for that.
  const Device& device() const { return *device_; }

 private:
  // Says which session and cache `message` is about.
  template <typename Message>
  void Address(Message* message) const {
    message->set_session_id(connection_->opened().session_id());
    message->set_cache(name_);
  }
  absl::Status DetachedError() const;

  const std::shared_ptr<Connection> connection_;
  const std::string name_;
  const v1::CacheLayout layout_;
  const v1::Device device_info_;
  const bool created_;
  const int32_t blocks_kept_;
  const CacheShape shape_;
  std::unique_ptr<Device> device_;  // kernels under mutex_; outlives the mappings
  std::unique_ptr<const CacheMemory> memory_;

  mutable Mutex mutex_;  // held while a kernel runs, or is enqueued
  bool detached_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  int32_t signalled_ KVTIER_CLIENT_GUARDED_BY(mutex_) = 0;  // last number for the daemon
  std::atomic<int64_t> awaited_{0};                         // furthest ticket waited for
};

}  // namespace kvtier::client
