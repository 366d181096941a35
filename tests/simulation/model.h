// What a node should be, too simple to be wrong: who holds which block, and which bytes a row has.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

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
    kZero,     // has been read as zeros, which a hot buffer may keep: not written any more
    kPending,  // its backup is enqueued
    kBacked,
    kUnknown,  // a fault was met: may be either
  };
  State state = kFresh;
  uint8_t salt = 0;
  int writer = -1;  // session, kPending
};

struct ModelBlock {
  std::set<int64_t> holders;  // requests
  bool limbo = false;         // may still be held by a session that has ended
  int32_t generation = -1;
  ModelRow rows[kBlockSize];
};

struct ModelRequest {
  int64_t key = 0;
  int32_t region = 0;
  int32_t reserve = 0;       // as admitted
  int32_t reserve_left = 0;  // not drawn
  std::vector<int32_t> table;
  bool writing = false;  // a backup of its newest row is in flight
};

struct ModelCache {
  int64_t key = 0;  // of this cache among all that had the name
  std::vector<ModelBlock> blocks = std::vector<ModelBlock>(kBlockCount);
  std::map<int, std::map<std::string, ModelRequest>> sessions;  // attached ones
  int32_t reserved_limbo = 0;  // may still be set aside for a session that has ended

  int32_t used() const;
  int32_t reserved() const;
  // Blocks that a new tenant can certainly have, and at most.
  int32_t free_surely() const;
  int32_t free_at_most() const;
  ModelRequest* Find(int session, const std::string& id);
  // The request holds nothing any more.
  void Drop(const ModelRequest& request, bool limbo);
};

class Model {
 public:
  bool draining = false;
  std::map<std::string, ModelCache> caches;
  // A cache that has ended, or a session that has left one, may still hold memory.
  bool memory_in_limbo = false;

  ModelCache* Attached(int session, const std::string& cache);
  // False: it joins.
  bool Attach(int session, const std::string& cache);
  void Leave(int session, const std::string& cache);
  void Close(int session);
  // All that was in limbo has come back.
  void Settle();
  int64_t NewKey() { return ++last_key_; }

 private:
  int64_t last_key_ = 0;
};

}  // namespace kvtier::simulation
