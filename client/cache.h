// A cache that this process is attached to: its memory, and the verbs on it.
//
// Two planes do the same work on the same state:
//   in-process  SwapIn, ReplayPlan, BackupNewest, BackupTensor: the kernels run here, on mapped
//               memory. On a CPU they have completed when the call returns; on a GPU they are
//               enqueued on the caller's stream, and a CUDA graph may capture them. The decode
//               path.
//   RPC         SwapInRpc, ReplayPlanRpc, BackupRpc, and Steps (client/steps.h): the daemon runs
//               them on the session's device stream. They return a ticket; outputs are in the
//               view once WaitTicket has answered.
// Both read inputs from the step buffers in view() and write outputs there, so the planes of one
// cache must not overlap: wait for tickets before an in-process call, and leave the step buffers
// alone while enqueued work still reads them. Shapes and words as in client/cache_view.h; what a
// step does is the contract of kernels/reference/reference.h, bit for bit.
//
// Errors of calls are those that proto/kvtier/v1/kvtier.proto lists for the RPC; read the reason
// with ErrorReasonOf (client/error.h). Beside these, every function can give
//   UNAVAILABLE           the daemon is lost. In-process SwapIn and ReplayPlan go on working: the
//                         memory stays mapped until the Cache and its Requests are destroyed. They
//                         are for finishing what runs. Backups are refused, because host rows may
//                         belong to others if in truth only the connection broke.
//   FAILED_PRECONDITION   the session was closed, or this is a forked child.
//   NOT_FOUND             SESSION_UNKNOWN: the daemon ended the session.
//   INVALID_ARGUMENT      FIELD_INVALID: an argument is out of range; nothing was done.
//
// Thread-safe, but for the memory itself: in-process calls of one cache run one after the other,
// and two threads that prepare steps in the same step buffers must agree among themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cache_view.h"
#include "client/request.h"
#include "client/session.h"
#include "kernels/counters.h"
#include "kernels/layout.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

class CacheState;

struct AttachOptions {
  // 1..128 bytes of [A-Za-z0-9._/-]. Sessions that name the same cache share its host rows.
  std::string cache;
  v1::CacheLayout layout;  // fields that are not set get the defaults of types.proto
  // Where the hot buffers go. Empty: the daemon's only device.
  std::string device_uuid;
  int32_t kernel_threads = 1;  // of in-process calls, the caller's included; 1..64
  absl::Duration wait_for_pool = absl::ZeroDuration();  // tries again so long at POOL_PINNING
  absl::Duration attach_timeout = absl::Seconds(60);    // of one try: kvtier.proto says why. > 0
  std::optional<v1::Retention> retain;  // as in AttachCacheRequest, like the next two
  std::optional<v1::Sharing> share;
  bool replace_kept = false;
};

// Layers of a group, counted from the leader.
struct LayerSpan {
  int32_t first_layer = 0;
  int32_t layer_count = 0;
};

struct SwapInOptions {
  bool use_slots = false;                   // topk holds slots instead of positions
  std::optional<LayerSpan> layers;          // to copy; absent: all of the group
  DeviceStreamRef device_stream = nullptr;  // see Cache
};

// Work on the daemon's device stream.
struct Ticket {
  int64_t number = 0;
  bool completed = false;
};

// Rows in this process's memory (on a GPU: in its device memory), one tensor a layer of the group.
struct TensorLayer {
  const uint8_t* rows = nullptr;  // StorageBytes(layout, row_count) bytes, 16-byte aligned
  RowLayout layout;               // the same format and row bytes as the cache's layer
};

class Cache {
 public:
  // Creates or joins the cache and maps its memory. Errors: as AttachCache; UNIMPLEMENTED /
  // NOT_IMPLEMENTED for memory of a GPU where the library was built without CUDA, and
  // FAILED_PRECONDITION / DEVICE_UNKNOWN for a GPU that this process cannot see; ALREADY_EXISTS /
  // ID_CONFLICT if this session has a Cache of that name; INTERNAL if the daemon's answer makes no
  // sense. Nothing stays attached then.
  static absl::StatusOr<Cache> Attach(const Session& session, const AttachOptions& options);

  Cache(Cache&& other) noexcept;
  Cache& operator=(Cache&& other) noexcept;
  // Detaches; the daemon then releases requests that are still admitted. The memory stays mapped
  // until the last Request is destroyed as well. Waits for an in-process call that is running, and
  // on a GPU for everything that this process has enqueued there.
  ~Cache();

  const std::string& name() const;
  // Of the daemon, with every default filled in.
  const v1::CacheLayout& layout() const;
  const v1::Device& device() const;
  // Did Attach create the cache?
  bool created() const;
  // Blocks that nobody held when this attached: rows of sessions that ended, or of the daemon
  // before.
  int32_t blocks_kept() const;
  // All of them now, by id. Request::AssignBlocks takes them up again, as shared blocks with their
  // generations; verify what they hold. Errors: as ListKeptBlocks.
  absl::StatusOr<std::vector<v1::KeptBlock>> ListKeptBlocks() const;
  // Valid until the Cache and all its Requests are destroyed.
  const CacheView& view() const;
  // This session's counters of `group`, of one moment where writers pause. Never waits, but on a
  // GPU for a small copy: not while a stream is being captured. Zeros if there is no such group.
  Counts counts(int32_t group) const;

  // Gives a request a region. `request_id`: 1..128 bytes, unique in this session and cache.
  // `reserve_blocks` blocks can then be assigned without fail. Errors: as AdmitRequest.
  absl::StatusOr<Request> Admit(absl::string_view request_id, int32_t reserve_blocks = 0);

  // Drops every session's cached copies of `blocks`, whose host rows were written by other means
  // than a backup. Returns the hot rows dropped. Errors: as InvalidateBlocks.
  absl::StatusOr<int64_t> InvalidateBlocks(std::span<const int32_t> blocks);

  // ---- In-process plane.
  //
  // `device_stream`: required on a GPU, where it is the cudaStream_t that the kernels are enqueued
  // on (null is FIELD_INVALID: nothing here uses the default stream). Calls of one cache must be in
  // order on the device, so use one stream, or order several. Nothing allocates, synchronizes or
  // reads device memory: a call may be captured, and its graph replayed with new inputs in the
  // step buffers for as long as the Cache lives. Errors: INTERNAL / DEVICE_ERROR.

  // One step of `group` on rows [0, num_rows) of the step buffers: view().row_to_request,
  // newest_slot, num_real_rows and the group's topk. num_rows: 0..step_rows.
  absl::Status SwapIn(int32_t group, int32_t num_rows, const SwapInOptions& options = {});

  // Copies the group's last plan on `layers`; absent: all but the leader.
  absl::Status ReplayPlan(int32_t group, int32_t num_rows,
                          const std::optional<LayerSpan>& layers = std::nullopt,
                          DeviceStreamRef device_stream = nullptr);

  // Copies the newest rows of the step buffers' requests to their view().newest_slot, all layers
  // of all groups. Rows with a slot of -1 are skipped.
  absl::Status BackupNewest(int32_t num_rows, DeviceStreamRef device_stream = nullptr);

  // Copies row source_rows[i] of `layers` to slot slots[i], all layers of `group`; -1 skips.
  // `regions` has the region whose cached copy of the slot is dropped, or is empty: then slots
  // must not have been swapped in before. `source_row_count`: rows of each tensor. On a GPU the
  // three lists are device memory too, and slots out of range are skipped instead of refused.
  absl::Status BackupTensor(int32_t group, std::span<const TensorLayer> layers,
                            int32_t source_row_count, std::span<const int32_t> source_rows,
                            std::span<const int32_t> slots, std::span<const int32_t> regions = {},
                            DeviceStreamRef device_stream = nullptr);

  // Says that the host rows of `slots` were written by the worker itself (through
  // view().groups[group].layers[l].host): they count as backed up, for as long as their blocks
  // stay assigned. Blocks must be held by requests of the caller's; cached copies are not
  // dropped (InvalidateBlocks).
  absl::Status MarkBacked(int32_t group, std::span<const int32_t> slots);

  // OK if backups may still write host rows. For captured ones, which nobody checks: ask before
  // each replay. Errors: as the head of this file says.
  absl::Status CheckBackup() const;

  // ---- RPC plane. With `wait` the call returns after completion.
  //
  // `device_stream` on a GPU: the daemon's work comes after all that the stream has now, and what
  // is enqueued on it afterwards comes after the daemon's work, or after the session's end
  // (client/session.h); no host waits. Null: the caller sees to the order (inputs complete before
  // the call, outputs after `wait` or WaitTicket). One that is being captured is FIELD_INVALID.

  absl::StatusOr<Ticket> SwapInRpc(int32_t group, int32_t num_rows,
                                   const SwapInOptions& options = {}, bool wait = false);
  absl::StatusOr<Ticket> ReplayPlanRpc(int32_t group, int32_t num_rows,
                                       const std::optional<LayerSpan>& layers = std::nullopt,
                                       bool wait = false, DeviceStreamRef device_stream = nullptr);
  // The newest rows, as BackupNewest.
  absl::StatusOr<Ticket> BackupRpc(int32_t num_rows, bool wait = false,
                                   DeviceStreamRef device_stream = nullptr);
  // Returns when `ticket` is done, with the newest ticket that is. At most call_timeout.
  absl::StatusOr<int64_t> WaitTicket(int64_t ticket);

  // For the other classes of the library.
  const std::shared_ptr<CacheState>& state() const { return state_; }

 private:
  explicit Cache(std::shared_ptr<CacheState> state);

  std::shared_ptr<CacheState> state_;  // null only after a move
};

}  // namespace kvtier::client
