// An inference request that was admitted to a cache: its region and its blocks.
//
//   auto request = cache->Admit("r1", /*reserve_blocks=*/4);
//   auto blocks = request->AssignBlocks(2);        // room for 2 * block_size tokens
//   int32_t slot = request->SlotOf(position);      // where the token of a position goes
//
// Errors: as the calls of the same name in proto/kvtier/v1/kvtier.proto, and those that
// client/cache.h gives for every function. Calls on one Request from several threads are safe,
// but the order of their blocks is then anyone's guess.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvtier::client {

class CacheState;

// What AssignBlocks appended to the block table, shared blocks first.
struct AssignedBlocks {
  std::vector<int32_t> block_ids;
  std::vector<int32_t> generations;  // of those blocks; the pair names the rows' tenant
  int32_t table_index = 0;           // entry of the first of them
  int64_t invalidated_copies = 0;    // hot rows dropped in all sessions
};

// Blocks of another request, perhaps of another session, to be shared; or blocks that are kept.
struct SharedBlocks {
  std::vector<int32_t> block_ids;
  std::vector<int32_t> generations;  // as many, or none: not checked; kept blocks need them
};

class Request {
 public:
  Request(Request&& other) noexcept;
  Request& operator=(Request&& other) noexcept;
  // Releases, if that was not done; its error is lost, so call Release() where it matters.
  ~Request();

  const std::string& id() const { return id_; }
  // What row_to_request holds for this request.
  int32_t region() const { return region_; }

  // Appends `shared` blocks, then `count` new ones, all or nothing. When it returns, no worker
  // can hit on the old rows of the new blocks. DEADLINE_EXCEEDED without a reason: the answer
  // was lost; block_table() shows what happened.
  // `tags`: none, or a number of the caller's choice for each new block, which ListKeptBlocks
  // tells.
  absl::StatusOr<AssignedBlocks> AssignBlocks(int32_t count, const SharedBlocks& shared = {},
                                              std::span<const int64_t> tags = {});

  // Takes `blocks` out of the table, all or nothing; returns how many nobody holds any more.
  // In-process work that reads or writes them must be done (on a GPU: on the device).
  absl::StatusOr<int32_t> FreeBlocks(std::span<const int32_t> blocks);

  // In-process work on the request must be done, as for FreeBlocks. Frees blocks and region;
  // returns how many blocks nobody holds any more. Afterwards every call on the request fails with
  // NOT_FOUND / REQUEST_UNKNOWN, and its region may be another's.
  absl::StatusOr<int32_t> Release();

  // [max_blocks_per_request] block ids as the kernels see them now, -1 none. On a GPU a copy, as of
  // this object's last AssignBlocks or FreeBlocks, whether that succeeded or not.
  std::span<const int32_t> block_table() const;
  // The slot of `position`; -1 if it is negative or no block covers it.
  int32_t SlotOf(int32_t position) const;
  // Positions at or past `length` are masked from now on; -1: unknown, none are. On a GPU a small
  // copy that is done when this returns: engines write view().sequence_lengths on their stream.
  void SetSequenceLength(int32_t length);

 private:
  friend class Cache;
  Request(std::shared_ptr<CacheState> state, std::string id, int32_t region);
  void ReleaseQuietly();
  // Copies the block table, where the host cannot read it in place.
  void RefreshTable();

  std::shared_ptr<CacheState> state_;  // null only after a move
  std::string id_;
  int32_t region_ = 0;
  bool released_ = false;
  std::vector<int32_t> table_;  // empty where the host can read it in place
};

}  // namespace kvtier::client
