// Who holds which block of a cache.
//
//   BlockLedger ledger("kv", block_count, neighbourhood_blocks, generations);
//   ledger.AddHolder(1, /*reserve_blocks=*/0);
//   auto assigned = ledger.Assign(1, 3, {}, {});       // 3 fresh blocks, generations raised
//   auto freed = ledger.Free(1, {assigned->block_ids[0]});
//   ... once nothing that was enqueued before can read it ...
//   ledger.ReleaseQuarantine(freed->quarantine);
//
// A block is free, assigned (to one or more holders), kept, or in quarantine: no holder has it any
// more, but enqueued work may still read it. free + assigned + kept + quarantined = all, always. A
// call that fails changes nothing.
//
// Kept blocks had a holder that ended without freeing them, and their rows may be wanted again:
// whoever shows a kept block's generation shares it as if somebody held it. Where free blocks run
// short, the oldest kept ones are given out.
//
// Reserved blocks are free blocks that only their holder can be given; they are drawn first.
//
// A pure data structure without locks: the owner serializes all calls. Only `generations` is
// read by others meanwhile (kernels, workers), hence atomic stores. Costs: O(log runs) for each
// run of blocks taken or given back and each neighbourhood, O(1) for each block checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/host_pool/block_ledger_places.h"
#include "server/host_pool/block_records.h"
#include "server/host_pool/kept_blocks.h"

namespace kvtier {

class BlockLedger {
 public:
  // A request, unique in its cache. The caller chooses.
  using Holder = BlockPlaces::Holder;  // >= 0

  // Generation of a block that was never assigned. Rows start as "backed at generation 0", so
  // they differ from every generation a block can have: a row that nobody wrote is unbacked.
  static constexpr int32_t kNeverAssigned = -1;
  static constexpr int64_t kNoQuarantine = 0;

  struct Assignment {
    std::vector<int32_t> block_ids;  // shared ones first
    std::vector<int32_t> generations;
    int32_t shared_count = 0;
    std::vector<int32_t> recycled;  // fresh blocks that had another tenant before
    std::vector<int32_t> taken_up;  // shared ones that were kept
    int32_t drawn_reservation = 0;
    int32_t last_block_before = -1;
  };

  struct Released {
    int64_t quarantine = kNoQuarantine;  // for ReleaseQuarantine
    int32_t block_count = 0;             // blocks that nobody holds any more
  };

  struct KeptBlock {
    int32_t block = 0;
    int32_t generation = 0;
    int64_t tag = 0;
  };

  // `name` of the cache for messages. A holder's blocks lie in neighbourhoods of
  // `neighbourhood_blocks` >= 1 as far as possible. `generations` int32 [block_count], outlives
  // the ledger; set to kNeverAssigned here.
  BlockLedger(std::string name, int32_t block_count, int32_t neighbourhood_blocks,
              int32_t* generations);
  // `records` outlive the ledger. With `adopt` they are an earlier ledger's: the blocks that it
  // had marked held are kept, the others free.
  BlockLedger(std::string name, int32_t block_count, int32_t neighbourhood_blocks,
              BlockRecords records, bool adopt);
  BlockLedger(const BlockLedger&) = delete;
  BlockLedger& operator=(const BlockLedger&) = delete;

  // `holder` is new. Errors: RESOURCE_EXHAUSTED / BLOCKS_EXHAUSTED.
  absl::Status AddHolder(Holder holder, int32_t reserve_blocks);

  // `count` fresh blocks (places: block_ledger_places.h) and shares of
  // `shared`, which others hold or which are kept; `shared_generations` empty or one each,
  // compared; needed where a block is kept. `tags` empty or one for each fresh block. Errors:
  // INVALID_ARGUMENT / FIELD_INVALID (count, repeated ids, a block that the holder has already),
  // BLOCK_OUT_OF_RANGE; FAILED_PRECONDITION / BLOCK_NOT_ASSIGNED, GENERATION_STALE;
  // RESOURCE_EXHAUSTED / BLOCKS_EXHAUSTED; NOT_FOUND / REQUEST_UNKNOWN.
  absl::StatusOr<Assignment> Assign(Holder holder, int32_t count,
                                    const std::vector<int32_t>& shared,
                                    const std::vector<int32_t>& shared_generations,
                                    const std::vector<int64_t>& tags = {});

  // Takes an assignment back as if it had not been, but for the generations. Its blocks go
  // through quarantine; drawn reservations return with them. Nothing if the holder is gone.
  Released Undo(Holder holder, const Assignment& assignment);

  // What Free would answer. Errors: INVALID_ARGUMENT / FIELD_INVALID, BLOCK_OUT_OF_RANGE;
  // FAILED_PRECONDITION / BLOCK_NOT_ASSIGNED; PERMISSION_DENIED / BLOCK_FOREIGN;
  // NOT_FOUND / REQUEST_UNKNOWN.
  absl::Status CheckFree(Holder holder, const std::vector<int32_t>& blocks) const;
  absl::StatusOr<Released> Free(Holder holder, const std::vector<int32_t>& blocks);

  // Frees all that the holder has and its reservation; with `keep` its blocks are kept once they
  // leave quarantine. Unknown holders: nothing.
  Released RemoveHolder(Holder holder, bool keep = false);

  // At most so many kept blocks from now on; older ones give way. All at first.
  void SetKeptMax(int32_t blocks_max);
  // Nobody is given kept blocks that are there now or come, except by their generations, until it
  // is taken back.
  void SetKeptProtected(bool is_protected) { kept_protected_ = is_protected; }
  // By block id from `first` on.
  std::vector<KeptBlock> ListKept(int32_t first, int32_t count_max) const;
  // The records stay as they are now, whatever happens to the ledger.
  void StopRecording() { recording_ = false; }

  // Makes the blocks of a quarantine free, or kept. Unknown ones: nothing.
  void ReleaseQuarantine(int64_t quarantine);

  // INVALID_ARGUMENT / BLOCK_OUT_OF_RANGE, FAILED_PRECONDITION / BLOCK_NOT_ASSIGNED, or OK.
  absl::Status CheckAssigned(const std::vector<int32_t>& blocks) const;

  int32_t block_count() const { return block_count_; }
  int32_t used_count() const {
    return block_count_ - places_.free_count() - quarantined_ - kept_.count();
  }
  // Free, reserved ones included.
  int32_t free_count() const { return places_.free_count(); }
  int32_t reserved_count() const { return reserved_; }
  int32_t quarantined_count() const { return quarantined_; }
  int32_t kept_count() const { return kept_.count(); }
  int32_t largest_free_run() const { return places_.largest_run(); }
  // Blocks that `holder` could be given at once.
  int32_t AvailableTo(Holder holder) const;
  int32_t BlocksOf(Holder holder) const;
  int32_t ReservedFor(Holder holder) const;
  bool IsFree(int32_t block) const { return places_.IsFree(block); }
  int32_t HolderCountOf(int32_t block) const { return holders_of_[block]; }

 private:
  struct HolderState {
    absl::flat_hash_set<int32_t> blocks;
    int32_t reserved = 0;
    int32_t last_block = -1;
  };
  struct Quarantine {
    std::vector<int32_t> blocks;  // become free
    std::vector<int32_t> kept;    // are kept
    Holder restore_to = 0;        // whose reservation grows by restore_count at the release
    int32_t restore_count = 0;
  };

  absl::Status CheckShared(const HolderState& state, const std::vector<int32_t>& shared,
                           const std::vector<int32_t>& shared_generations) const;
  absl::Status CheckRange(const std::vector<int32_t>& blocks) const;
  absl::Status Exhausted(int64_t requested, int32_t available) const;
  int32_t GenerationOf(int32_t block) const;
  // Gives a free block its next generation.
  int32_t RaiseGeneration(int32_t block);
  void Record(int32_t block, bool held);
  // Free blocks, and kept ones that may be given out.
  int32_t Obtainable() const;
  // Frees the oldest kept blocks until `count` are free.
  void MakeFree(int32_t count);
  void FreeOldestKept(int32_t count);
  // One holder less; true if it was the last.
  bool Drop(int32_t block) { return --holders_of_[block] == 0; }
  Released PutInQuarantine(Quarantine what);

  const std::string name_;
  const int32_t block_count_;
  const BlockRecords records_;
  bool recording_ = true;
  BlockPlaces places_;
  std::vector<int32_t> holders_of_;  // [block_count] number of holders
  absl::flat_hash_map<Holder, HolderState> holders_;
  absl::flat_hash_map<int64_t, Quarantine> quarantines_;
  int64_t last_quarantine_ = kNoQuarantine;
  KeptBlocks kept_;
  int32_t kept_max_;
  bool kept_protected_ = false;
  int32_t reserved_ = 0;     // sum over the holders; <= free
  int32_t quarantined_ = 0;  // blocks in quarantines_
};

}  // namespace kvtier
