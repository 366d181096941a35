// What a node should be, too simple to be wrong: who holds which block, and which bytes a row has.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/session/retention.h"

namespace kvtier::simulation {

// Geometry of every cache of a simulation.
inline constexpr int32_t kBlockSize = 2;
inline constexpr int32_t kBlockCount = 6;
inline constexpr int32_t kRequestsMax = 3;
inline constexpr int32_t kTopK = 4;
inline constexpr int32_t kHotSize = 6;
inline constexpr int32_t kLayers = 2;
inline constexpr int32_t kRowBytes = 32;

struct ModelRow {
  enum State {
    kFresh,    // assigned and never written: reads as zeros
    kPending,  // its backup is enqueued
    kBacked,
    kMaybe,  // a fault or a kill was met: written, or as if it had never been
  };
  State state = kFresh;
  uint8_t salt = 0;
  int writer = -1;  // session, kPending
  // Sessions that read it when nobody had written it, a swap-in in flight each.
  std::vector<int> zero_readers;
};

struct ModelBlock {
  std::set<int64_t> holders;  // requests
  bool limbo = false;         // may still be held by a session that has ended
  bool limbo_keeps = false;   // which would keep it
  bool contested = false;     // somebody else has freed it meanwhile
  bool quarantined = false;   // may not be free yet
  bool kept = false;          // without a holder; perhaps, unless its cache knows
  int64_t kept_age = 0;       // the same for those whose order is not known
  int32_t generation = -1;
  ModelRow rows[kBlockSize];
};

struct ModelRequest {
  int64_t key = 0;
  int32_t region = 0;
  int32_t reserve = 0;       // as admitted
  int32_t reserve_left = 0;  // not drawn; at least, if it is not sure
  bool reserve_sure = true;  // else a part of it is on its way back
  std::vector<int32_t> table;
  bool writing = false;  // a backup of its newest row is in flight
};

struct ModelCache {
  int64_t key = 0;  // of this cache among all that had the name
  std::vector<ModelBlock> blocks = std::vector<ModelBlock>(kBlockCount);
  std::map<int, std::map<std::string, ModelRequest>> sessions;  // attached ones
  int32_t reserved_limbo = 0;  // may still be set aside for a session that has ended

  // What outlives sessions.
  bool adopted = false;
  Retention retention;
  absl::Time reattach_until = absl::InfinitePast(), expires = absl::InfinitePast();
  int32_t kept_max = kBlockCount;
  bool kept_known = true;  // else `kept` of a block means: perhaps
  bool guarded = false;    // kept blocks are for who shows their generation
  bool undone = false;     // an assignment was taken back: which blocks it had is not known

  int32_t used() const;
  int32_t reserved() const;
  int32_t kept() const;
  // Is what is kept known, and none of it about to give way to what is coming?
  bool kept_is_certain() const;
  // Blocks that a new tenant can certainly have, and at most.
  int32_t free_surely() const;
  int32_t free_at_most() const;
  ModelRequest* Find(int session, const std::string& id);
  // The request holds nothing any more.
  void Drop(const ModelRequest& request, bool limbo, bool keep = false);
  void DropBlock(ModelBlock* block, int64_t request_key);
  // A request or its blocks were taken back: which blocks are on their way is not known, and
  // `drawn` of its reservation.
  void Undo(int32_t drawn);
  // So many free blocks, reserved ones included, are wanted: the oldest kept ones give way.
  void MakeFree(int32_t count);
  void SetRetention(const Retention& value);
  // Kept blocks are for everybody again.
  void EndGuard();
  void Settle(int64_t age);

 private:
  void FreeOldest(int32_t count);
};

class Model {
 public:
  bool draining = false;
  std::map<std::string, ModelCache> caches;
  // Ended, but a daemon that is killed may have left them.
  std::multimap<std::string, ModelCache> ending;
  // A cache that has ended, or a session that has left one, may still hold memory.
  bool memory_in_limbo = false;
  // Workers of an earlier daemon map the pool.
  bool earlier_workers = false;

  ModelCache* Attached(int session, const std::string& cache);
  // False: it joins.
  bool Attach(int session, const std::string& cache);
  // True if the cache ends with it.
  bool Leave(int session, const std::string& cache, absl::Time now);
  void Close(int session, absl::Time now);
  // Without sessions, and nobody may write its rows.
  bool MayEnd(const ModelCache& cache) const;
  void End(const std::string& cache);
  // All that was in limbo has come back.
  void Settle();
  int64_t NewKey() { return ++last_key_; }

 private:
  int64_t last_key_ = 0;
};

}  // namespace kvtier::simulation
