// Value types of the session floor: what the service floor passes in and gets back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/counters.h"
#include "server/core/cache_layout.h"
#include "server/device/backend.h"
#include "server/host_pool/cache_access.h"
#include "server/host_pool/cache_file.h"
#include "server/session/latency.h"

namespace kvtier {

// Credentials of the peer, as its socket says; -1 where it does not (TCP).
struct Peer {
  int32_t pid = -1;
  int32_t uid = -1;
  std::vector<int32_t> gids;  // all of its groups
};

// Told about one session. Called on any thread, never under a lock; must not block.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void OnDraining(const std::string& message) = 0;
  // Last call of all.
  virtual void OnRevoked(const std::string& message) = 0;
};

enum class SegmentKind {
  kHostPool,
  kBlockGeneration,
  kBackedGeneration,
  kHotBuffer,
  kState,
  kStep,
  kProgress,
};

// One piece of memory that a worker maps.
struct SegmentInfo {
  SegmentKind kind = SegmentKind::kHostPool;
  MemoryHandle::Transport transport = MemoryHandle::Transport::kPosixFd;
  int64_t size_bytes = 0;
  int64_t offset_bytes = 0;  // into the descriptor or the IPC allocation
  std::string fd_token;      // kPosixFd, kCudaFd
  std::string ipc_handle;    // kCudaIpc, 64 bytes
  bool read_only = false;
  bool sealed = true;  // kPosixFd: against shrinking; false: a file of the pool folder
};

// Segments in the order of SegmentKind; arrays by the geometries of the layout
// (server/core/cache_layout.h).
struct AttachResult {
  CacheLayout layout;
  bool created = false;
  int32_t blocks_kept = 0;
  DeviceInfo device;
  std::vector<SegmentInfo> segments;
};

struct AssignResult {
  std::vector<int32_t> block_ids;  // shared ones first
  std::vector<int32_t> generations;
  int32_t table_index = 0;
  int64_t invalidated_copies = 0;
};

struct LayerRange {
  int32_t first_layer = 0;
  int32_t layer_count = 0;
};

struct InlineSwapInRow {
  std::string request_id;     // empty: padding
  std::vector<int32_t> topk;  // at most top_k; the rest is -1
  int32_t newest_slot = kNone;
};

// Exactly one of `inline_rows` and `step_rows`.
struct SwapInCall {
  std::string cache;
  int32_t group = 0;
  bool use_slots = false;
  std::optional<LayerRange> layers;  // absent: all layers of the group
  std::optional<std::vector<InlineSwapInRow>> inline_rows;
  std::optional<int32_t> step_rows;
  std::optional<int32_t> after_worker;  // first for this number of the worker's stream
};

struct SwapInRowOutput {
  std::vector<int32_t> hot_indices;  // [top_k]
  std::vector<int32_t> miss_mask;    // [top_k]
  int32_t valid_count = 0;
  std::vector<int32_t> plan_slots;     // [misses of the row]
  std::vector<int32_t> plan_hot_rows;  // [misses of the row]
};

struct ReplayPlanCall {
  std::string cache;
  int32_t group = 0;
  std::optional<LayerRange> layers;  // absent: all but the leader
  int32_t num_rows = 0;
  std::optional<int32_t> after_worker;
};

struct InlineBackupRow {
  std::string request_id;
  int32_t slot = kNone;
  std::optional<int32_t> source_hot_row;  // absent: the request's newest row
};

// Exactly one of `inline_rows` and `step_rows`. All layer groups.
struct BackupCall {
  std::string cache;
  std::optional<std::vector<InlineBackupRow>> inline_rows;
  std::optional<int32_t> step_rows;
  std::optional<int32_t> after_worker;
};

// Runs once when an operation is done, on a thread of the device backend; must not block.
// `rows` is filled for inline swap-ins only.
struct OperationOutcome {
  absl::Status status;
  int64_t ticket = 0;
  std::vector<SwapInRowOutput> rows;
};
using OperationDone = std::function<void(OperationOutcome)>;

// ---- What operators see.

struct SessionCacheSnapshot {
  std::string session_id;
  std::string client_name;
  std::vector<Counts> groups;
  int32_t requests = 0;
  int64_t operations_in_flight = 0;
  int64_t device_bytes = 0;
};

struct CacheSnapshot {
  std::string cache;
  CacheLayout layout;
  std::vector<Counts> groups;  // all sessions, ended ones included
  std::vector<SessionCacheSnapshot> sessions;
  int32_t blocks_used = 0;
  int32_t blocks_free = 0;
  int32_t blocks_reserved = 0;
  int32_t blocks_quarantined = 0;
  int32_t blocks_kept = 0;
  int32_t largest_free_run_blocks = 0;
  int64_t host_bytes = 0;
  CacheAccess access;
  Retention retention;
  std::optional<absl::Time> expires_time;                    // without sessions
  std::array<LatencyCounts, kOperationKindCount> latencies;  // by OperationKind
};

// What a user has, of caches and pool what is the user's own.
struct UserSnapshot {
  int32_t uid = -1;  // -1: nobody knows whose
  int32_t sessions = 0, caches = 0;
  int64_t pool_bytes = 0;  // also of ended caches whose memory is not back yet
};

struct NodeSnapshot {
  absl::Time time;
  Counts total;                       // all caches, ended ones included
  std::vector<CacheSnapshot> caches;  // by name
  std::vector<UserSnapshot> users;    // by uid, who has something
  int32_t sessions = 0;
  bool draining = false;
};

struct SessionSnapshot {
  std::string session_id;
  std::string client_name;
  Peer peer;
  absl::Time opened_time;
  std::vector<std::string> caches;
};

struct RequestSnapshot {
  std::string session_id;
  std::string request_id;
  int32_t region = 0;
  int32_t blocks = 0;
  int32_t reserved_blocks = 0;
};

}  // namespace kvtier
