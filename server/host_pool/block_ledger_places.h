// Where in the pool a holder's blocks lie: neighbours together.
//
// A GPU that gathers rows all over a large pool spends its time on translating addresses; rows of
// pieces of 2 MiB come at the speed of the bus (docs/adr/0012-neighbourhoods.md). So the blocks of
// a cache are divided into neighbourhoods of equal size, and a holder that takes a block of one
// claims it: others are given blocks elsewhere as long as there are any. 64 requests that grow by
// a block in turn grow in 64 neighbourhoods.
//
// Claims are wishes; they never make an allocation fail. Where no whole neighbourhood is left,
// those that have not taken a block for long lose theirs, and where all that is free is claimed it
// is given away, from the middle of the longest piece, so that both can go on growing.
//
// Costs: O(log runs) for each run of blocks taken or given back, and for each neighbourhood.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "server/host_pool/block_ledger_runs.h"

namespace kvtier {

// Not thread-safe.
class BlockPlaces {
 public:
  using Holder = int64_t;

  // All of 0..block_count-1 are free. `neighbourhood_blocks` >= 1; with 1 there are only runs.
  BlockPlaces(int32_t block_count, int32_t neighbourhood_blocks);

  int32_t free_count() const { return free_.free_count(); }
  int32_t largest_run() const { return free_.largest_run(); }
  bool IsFree(int32_t block) const { return free_.IsFree(block); }

  // Takes `count` <= free_count() blocks, in this order of preference: from `next_to` on, unless
  // another claims it; in neighbourhoods that the holder claims; in whole free ones, the smallest
  // row of them that has place for `room` more, which is claimed too; in those that nobody claims;
  // in those of others. `next_to` -1: nowhere.
  std::vector<int32_t> Take(Holder holder, int32_t count, int32_t next_to, int32_t room);

  // Takes this free block, for nobody's neighbourhood.
  void TakeOne(int32_t block);

  // Gives back blocks that are not free; any order, no repetition.
  void Put(std::vector<int32_t> blocks);

  // Ends the holder's claims.
  void Forget(Holder holder);

  // Neighbourhoods with free blocks that `holder` claims.
  int32_t ClaimsOf(Holder holder) const;

 private:
  static constexpr Holder kNobody = -1;
  using Run = FreeRuns::Run;
  // (free blocks, neighbourhood)
  using ByFree = absl::btree_set<std::pair<int32_t, int32_t>>;

  struct Neighbourhood {
    int32_t free = 0;
    Holder claimed_by = kNobody;  // kNobody where nothing is free
  };
  // What a holder claims.
  struct Claims {
    absl::btree_set<int32_t> ids;
    int64_t last_take = 0;  // the number of a call of Take
  };
  // One call of Take.
  struct Taking {
    Holder holder;
    int32_t missing;
    std::vector<int32_t> taken;
  };

  int32_t Of(int32_t block) const { return block / size_; }
  int32_t Begin(int32_t id) const { return id * size_; }
  int32_t End(int32_t id) const;
  bool IsWhole(int32_t id) const { return all_[id].free == End(id) - Begin(id); }

  void TakeBehind(int32_t next_to, Taking* taking);
  void TakeClaimed(Taking* taking);
  void TakeWhole(int32_t room, Taking* taking);
  void TakePartial(int32_t room, Taking* taking);
  void TakeOthers(Taking* taking);
  // What is free in one neighbourhood, which is the holder's from now on.
  void TakeIn(int32_t id, Taking* taking);
  // Free blocks of one neighbourhood; no claim changes.
  void TakeRun(Run run, Taking* taking);
  Run LongestIn(int32_t id) const;

  // Notes that the holder took blocks in this call.
  void Touch(Holder holder);
  void EndIdleClaims();

  // The one place where a neighbourhood changes, and with it the lists below.
  void Change(int32_t id, int32_t free, Holder claimed_by);
  void List(int32_t id);
  void Unlist(int32_t id);

  const int32_t size_;
  const int32_t block_count_;
  FreeRuns free_;                   // blocks
  std::vector<Neighbourhood> all_;  // by id
  // Each neighbourhood with a free block is in one of these three.
  FreeRuns whole_;  // ids: all blocks free, no claim
  ByFree partial_;  // some are free, no claim
  ByFree claimed_;

  absl::flat_hash_map<Holder, Claims> claims_;
  absl::btree_set<std::pair<int64_t, Holder>> by_last_take_;  // of claims_
  int64_t take_count_ = 0;
};

}  // namespace kvtier
