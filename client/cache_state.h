// What a Cache, its Requests and its Steps share. Internal to client/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache.h"
#include "client/cache_shape.h"
#include "client/connection.h"
#include "client/mutex.h"
#include "client/segment_map.h"
#include "kernels/cpu/executor.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"

namespace kvtier::client {

class CacheState {
 public:
  CacheState(std::shared_ptr<Connection> connection, std::string name,
             const v1::AttachCacheResponse& answer, CacheShape shape, CacheMemory memory,
             int32_t kernel_threads);
  ~CacheState();
  CacheState(const CacheState&) = delete;
  CacheState& operator=(const CacheState&) = delete;

  const Connection& connection() const { return *connection_; }
  const std::string& name() const { return name_; }
  const v1::CacheLayout& layout() const { return layout_; }
  const v1::Device& device() const { return device_; }
  bool created() const { return created_; }
  const CacheShape& shape() const { return shape_; }
  const CacheMemory& memory() const { return memory_; }

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

  // Checked messages of the RPC plane. Errors: FIELD_INVALID.
  absl::StatusOr<v1::SwapInRequest> SwapInMessage(int32_t group, int32_t num_rows,
                                                  const SwapInOptions& options, bool wait) const;
  absl::StatusOr<v1::ReplayPlanRequest> ReplayPlanMessage(int32_t group, int32_t num_rows,
                                                          const std::optional<LayerSpan>& layers,
                                                          bool wait) const;
  absl::StatusOr<v1::BackupRequest> BackupMessage(int32_t num_rows, bool wait) const;
  v1::WaitTicketRequest WaitTicketMessage(int64_t ticket) const;

  // Runs `work(executor)` alone, if in-process work may read (or also write) the memory.
  template <typename Work>
  absl::Status RunKernel(bool writes_host, const Work& work) KVTIER_CLIENT_EXCLUDES(mutex_) {
    if (absl::Status status = connection_->CheckMemory(writes_host); !status.ok()) return status;
    MutexLock lock(&mutex_);
    if (detached_) return DetachedError();
    work(*executor_);
    return absl::OkStatus();
  }

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
  const v1::Device device_;
  const bool created_;
  const CacheShape shape_;
  const CacheMemory memory_;

  mutable Mutex mutex_;  // held while a kernel runs
  bool detached_ KVTIER_CLIENT_GUARDED_BY(mutex_) = false;
  std::unique_ptr<cpu::Executor> executor_ KVTIER_CLIENT_GUARDED_BY(mutex_);
};

}  // namespace kvtier::client
