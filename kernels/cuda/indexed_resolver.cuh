// One request's part of a swap-in through the index of its region: a step costs no more than its
// positions and one pass over the order.
//
// What Resolver (resolver.cuh) does for any call, this does for the common one: one row a
// request, an index (region_index.cuh), everything in shared memory. It reads the region's state as
// an image, and changes nothing before it knows that the order is sound: else it leaves the step to
// Resolver. All blocks of a row's cluster do the same work on images of their own, so that each
// knows every copy without asking; the first of them writes all but the index and the order, and
// alone decides what may change meanwhile: which rows are backed. (Blocks that are invalidated
// beside a step are not asked for in it: kernels/README.md. Else its blocks might differ in what
// they copy, and the request would have rows of wrong bytes, but no other. So it would if its
// worker changed the inputs of its own running step, of which several blocks may write parts of the
// state then: a damaged order or index.)
//
// Phases (a barrier behind each; 4 only if something is missing):
//   1. Load    images of owners, index and order; slots of the positions meanwhile
//   2. Find    each position in the index; a warp that misses some may begin to read one row
//   3. Count   hits in the order, by warp; missing positions are listed in order
//   4. Unify   missing positions with one slot are one miss: a thread has one of them. Beside that
//              the victims are listed, the oldest hot slots without a hit: the m-th is for the
//              m-th miss, however many there are in the end. Then each block writes its part of
//              the new order
//   5. Place   owners, outputs and plan, by the block that writes; and the index, where a row has
//              many blocks by another one
// A warp has consecutive positions and consecutive order entries, so ranks are popcounts and the
// sum over the warps before, which each warp adds up by itself.
//
// An order is sound if every entry is a hot slot and the sum of a bijective mix of the entries is
// that of a permutation. One wrong entry is always seen; several would have to keep a 32-bit sum.
// An entry out of range is never used.
//
// What a block costs is the number of instructions: 1,024 threads keep the four schedulers of a
// multiprocessor busy, and each instruction of every warp takes eight cycles of one. Hence the
// instance for the sizes of DeepSeek-V3.2 and GLM-5, in which all lengths are constants.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/indexed_tables.cuh"
#include "kernels/cuda/keep_rows.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/region_index.cuh"
#include "kernels/cuda/stats.cuh"
#include "kernels/eviction.h"

namespace kvtier::cuda {

// kTopK, kHotSize: the sizes, or 0 for those of `tables`. kThreads: of the block, or 0. kAged: hot
// slots have scores (indexed_scores.cuh).
template <int32_t kTopK, int32_t kHotSize, int32_t kThreads, bool kAged>
class IndexedResolver {
 public:
  // block_shift: log2 of the block size, or kNone if it has none.
  __device__ IndexedResolver(const SwapInParams& p, const StepPlan& plan, bool writes_plan,
                             int32_t block_shift, const IndexedTables& tables, int32_t row,
                             int32_t blocks)
      : p_(p),
        plan_(plan),
        t_(tables),
        block_shift_(block_shift),
        blocks_(blocks),
        writes_plan_(writes_plan),
        row_(row),
        topk_(p.topk + int64_t{row} * top_k()),
        hot_indices_(p.hot_indices + int64_t{row} * top_k()) {}

  // Clears tables; reads nothing.
  __device__ void Clear();
  // Phase 1: starts to read what does not depend on the request. A barrier must follow.
  __device__ void ReadPositions();
  // Where whole arrays can be copied: by thread 0, as soon as it knows a region that is there.
  __device__ void StartBulk(int32_t region);
  __device__ void LetBulkArrive() {
    if constexpr (kBulk) WaitForBulkCopies(Shared<uint64_t>(t_.barrier));
  }
  // Then the rest, without waiting for it.
  __device__ void ReadState(int32_t region);
  // Phases 2 and 3. False: the order is damaged, and nothing but outputs was written. All threads
  // of all blocks of the cluster, which have read the state when they come back. Warps that find
  // some of their positions missing call start(slot), all lanes, with the slot of the `turn`-th of
  // those, if they have so many.
  template <typename Function>
  __device__ bool FindMissing(int32_t turn, const Function& start);
  // Phase 4, and the new order.
  __device__ void Resolve();
  // Phase 5. Place() by the block that writes; KeepIndex() by the one that keeps the index, another
  // one where a row has many: nothing in either depends on the other.
  __device__ void Place();
  __device__ void KeepIndex();
  __device__ bool writes() const { return Rank() == 0; }
  __device__ bool keeps_index() const {
    return Rank() == (blocks_ < kBlocksMany ? 0 : blocks_ - 1);
  }
  // Last of all, by all threads of all blocks, also if they do nothing else. A block that others
  // may read from stays until they can't any more: they do so if something is missing, and what a
  // worker changes during its own step may have shown them other inputs. Blocks that are gone count
  // as arrived.
  __device__ void Leave();

  // After FindMissing(): positions that are missing. If no two of them ask for the same, which
  // repeats() says after Resolve(), each is the miss of its number.
  __device__ int32_t missing() const { return missing_; }
  __device__ int32_t slot(int32_t q) const { return Shared<int32_t>(t_.slot)[q]; }
  __device__ bool repeats() const { return repeats_; }
  // The warp's part of what is free by then if rows are not tracked.
  __device__ uint8_t* Stage(int32_t bytes) const {
    return Shared<uint8_t>(t_.stage) + Warp() * bytes;
  }
  // Of the positions of the warp that has this lane's number.
  __device__ int32_t MissingOfLane() const {
    return Lane() < warps() ? Shared<int32_t>(t_.warp_sums)[Lane()] : 0;
  }

  // The step's misses: for m in [0, misses()) the host row source(m), kNone for zeros, goes to the
  // hot row hot_row(m); where KeptOr(source(m)) is less, from the kept row that it names. In every
  // block after Resolve().
  __device__ int32_t misses() const { return misses_; }
  __device__ int32_t source(int32_t m) const { return Shared<int32_t>(t_.slot)[OriginOf(m)]; }
  __device__ int32_t KeptOr(int32_t slot) const {
    return kAged && slot == kept_ ? FromHotRow(base_ + hot_size() + 1) : slot;
  }
  __device__ int32_t hot_row(int32_t m) const { return base_ + VictimOf(m); }
  // Puts the misses into the order of their host rows, roughly: address(i) is the miss that is
  // i-th. All threads, once everything is placed: other tables make room.
  __device__ void SortByAddress();
  __device__ int32_t address(int32_t i) const { return Shared<uint16_t>(t_.address)[i]; }

  // What was counted, lane c counter c, once everything is placed. All lanes of a warp of the block
  // that writes.
  __device__ int64_t Count() const;

 private:
  // In `words`: [0] is the caller's.
  static constexpr int32_t kOrderSum = 1;
  static constexpr int32_t kTally = 2;    // newest positions in the upper half, invalid ones below
  static constexpr int32_t kFlags = 3;    // of missing positions: the two below
  static constexpr int32_t kRepeats = 1;  // two have one slot
  static constexpr int32_t kDoubted = 2;  // one has no source, or it must be looked up
  static constexpr int32_t kLimit = 4;    // kAged: evictables below this score are drawn,
  static constexpr int32_t kDrawnAtLimit = 5;  // and so many of those that have it
  // Not 0: the index has no place for a new owner. A word, not what __syncthreads_and() returns: an
  // argument that is known (where nothing is missing) lets ptxas 13.0 repeat that barrier where its
  // result is used, which is in one thread.
  static constexpr int32_t kIncomplete = 6;
  static constexpr int32_t kWordsUsed = 7;
  static constexpr int32_t kFree = kNone;             // in table
  static constexpr int32_t kNothingKept = INT32_MIN;  // no slot, and not kNone either
  // Words of 32 that a warp takes at a time, a lane one element of each: their loads are in flight
  // together.
  static constexpr int32_t kWords = 2;       // of positions
  static constexpr int32_t kOrderWords = 4;  // of order entries
  // Each warp has exactly these, and no word is cut short.
  static constexpr bool kExact =
      kThreads > 0 && kTopK == kThreads* kWords&& kHotSize == kThreads* kOrderWords;
  static constexpr int32_t kOfThread = kOrderWords;  // hot slots, four neighbours; where kExact
  static constexpr bool kBulk = kExact && kHasBulkCopies;

  __device__ static constexpr int32_t Divide(int32_t a, int32_t b) { return (a + b - 1) / b; }
  __device__ int32_t top_k() const { return kTopK > 0 ? kTopK : t_.top_k; }
  __device__ int32_t hot_size() const { return kHotSize > 0 ? kHotSize : t_.hot_size; }
  __device__ int32_t threads() const { return kThreads > 0 ? kThreads : ThreadCount(); }
  __device__ int32_t warps() const { return threads() / kWarpThreads; }
  // This warp's words of positions: [first_word, end_word).
  __device__ int32_t position_words() const { return Divide(top_k(), kWarpThreads); }
  __device__ int32_t words_of_warp() const { return Divide(position_words(), warps()); }
  __device__ int32_t first_word() const { return Warp() * words_of_warp(); }
  __device__ int32_t end_word() const {
    return kExact ? first_word() + kWords : min(first_word() + words_of_warp(), position_words());
  }
  // And of order entries.
  __device__ int32_t order_words() const { return Divide(hot_size(), kWarpThreads); }
  __device__ int32_t order_words_of_warp() const { return Divide(order_words(), warps()); }
  __device__ int32_t first_order_word() const { return Warp() * order_words_of_warp(); }
  __device__ int32_t end_order_word() const {
    return kExact ? first_order_word() + kOrderWords
                  : min(first_order_word() + order_words_of_warp(), order_words());
  }

  // Of the row's blocks.
  __device__ int32_t Rank() const { return static_cast<int32_t>(blockIdx.x) & (blocks_ - 1); }

  __device__ RegionIndex index() const {
    return RegionIndex(Shared<uint16_t>(t_.index), Shared<int32_t>(t_.owner), hot_size(),
                       t_.buckets);
  }
  __device__ int32_t* words() const { return Shared<int32_t>(t_.words); }
  // The hot slot of miss m. (Under kAged a damaged order may name anything.)
  __device__ int32_t VictimOf(int32_t m) const {
    const int32_t victim = Shared<uint16_t>(t_.victim)[m];
    return kAged ? min(victim, hot_size() - 1) : victim;
  }
  // The missing position that miss m stands for, and the miss that missing position q asks for.
  __device__ int32_t OriginOf(int32_t m) const {
    return repeats_ ? Shared<uint16_t>(t_.origin)[m] : m;
  }
  __device__ int32_t MissOf(int32_t q) const {
    return repeats_ ? Shared<uint16_t>(t_.miss)[Shared<uint16_t>(t_.first)[q]] : q;
  }

  template <typename T>
  __device__ void LoadImage(T* image, const T* from, int32_t count) const;
  __device__ bool BuildIndex();
  __device__ void LoadValues(int32_t first);
  __device__ void FindSlots();
  __device__ int32_t FindPart(int32_t first);
  __device__ int32_t FindAll();
  template <typename Function>
  __device__ void StartOne(int32_t turn, const Function& start) const;
  __device__ void Answer(int32_t word, int32_t slot, int32_t hot_slot);

  // Order entries of kOrderWords words, as one lane sees them.
  struct OrderPart {
    uint32_t hot_slot[kOrderWords];
    uint32_t hits[kOrderWords];  // of the whole word
    __device__ int32_t CountHits() const {
      int32_t count = 0;
#pragma unroll
      for (int32_t k = 0; k < kOrderWords; ++k) count += __popc(hits[k]);
      return count;
    }
  };
  __device__ OrderPart ReadOrder(int32_t first) const;
  __device__ void CheckOrder(int32_t first, const OrderPart& part, uint32_t* largest,
                             uint32_t* sum) const;
  __device__ void SumOverWarps(const uint32_t* of_warps, int32_t* all, int32_t* before) const;
  __device__ void ListMissing(int32_t missing_before);
  __device__ void ClearTable();
  __device__ int32_t NoteMissing();
  __device__ bool EnterMissing(int32_t q);
  __device__ void NumberFirsts();
  __device__ void FindSources();
  __device__ void AgreeOnSources();
  __device__ bool AgreesOnSources() const {
    return blocks_ > 1 && p_.tracking.backed_generation != nullptr;
  }
  // At the barrier of the cluster: once in FindMissing(), twice in AgreeOnSources().
  static constexpr int32_t kArrivals = 3;
  // Each block writes the warps' parts of the new order that fall to it.
  __device__ bool WritesOrder() const { return Warp() * blocks_ / warps() == Rank(); }
  __device__ void Arrive();
  __device__ void WaitForOthers();
  template <typename Function>
  __device__ void ForEachMove(const Function& function);
  __device__ void ListVictims();
  __device__ void Reorder();
  // indexed_scores.cuh
  __device__ void ClearScores();
  __device__ void AgeScores();
  __device__ void CountScore(uint32_t score);
  __device__ void StoreScores() const;
  __device__ void FindLimit();
  __device__ uint32_t ScoresOf(int32_t first, const OrderPart& part) const;
  struct Draws {
    uint32_t below, at_limit;
  };
  __device__ Draws CompareWithLimit(uint32_t scores) const;
  __device__ void CountDraws();
  __device__ void ListDraws();
  __device__ void StoreMoved(int32_t word, const OrderPart& part, int32_t k, int32_t hits,
                             bool is_drawn, int32_t rank) const;
  __device__ void DropNewest();
  __device__ int32_t PlaceMiss(int32_t m);

  // Bijective, as a value and its product with an even number are: two instructions a term of a
  // sum.
  __host__ __device__ static constexpr uint32_t Mix(uint32_t value) {
    return value * (value * 0x9e3779b2u + 1);
  }
  __host__ __device__ static constexpr uint32_t MixOfAll(uint32_t end) {
    uint32_t sum = 0;
    for (uint32_t value = 0; value < end; ++value) sum += Mix(value);
    return sum;
  }

  const SwapInParams& p_;
  const StepPlan& plan_;
  const IndexedTables& t_;
  const int32_t block_shift_;
  const int32_t blocks_;  // of the row
  const bool writes_plan_;
  const int32_t row_;
  const int32_t* const topk_;
  int32_t* const hot_indices_;
  int32_t region_ = 0, base_ = 0;
  int32_t hits_ = 0, missing_ = 0, misses_ = 0;
  int32_t newest_ = kNone;
  int32_t kept_ = kNothingKept;  // kAged: the slot that the region's kept row holds
  bool must_wait_ = false;       // at the barrier of the cluster where this block arrived last
  int32_t arrivals_ = 0;         // there
  bool builds_ = false;          // the index is made anew in this step
  bool repeats_ = false;         // two missing positions have one slot
  bool draws_all_ = true;        // kAged: a victim for each miss, no more and no less
  int32_t older_hits_ = 0;       // than the warp's part of the order
  uint32_t scores_ = 0;          // kAged: see ScoresOf(); where kExact
  uint32_t draws_ = 0;           // kAged: of the warp's part of the order, see CountDraws()
  // Of the part of the positions, and of the order, that the warp works on.
  int32_t slots_[kWords];
  uint32_t missing_lanes_[kWords];
  OrderPart order_;
};

#define KVTIER_RESOLVER template <int32_t kTopK, int32_t kHotSize, int32_t kThreads, bool kAged>
#define KVTIER_RESOLVER_OF IndexedResolver<kTopK, kHotSize, kThreads, kAged>

}  // namespace kvtier::cuda

#include "kernels/cuda/indexed_lookup.cuh"
#include "kernels/cuda/indexed_misses.cuh"
#include "kernels/cuda/indexed_order.cuh"
#include "kernels/cuda/indexed_place.cuh"
#include "kernels/cuda/indexed_scores.cuh"

#undef KVTIER_RESOLVER
#undef KVTIER_RESOLVER_OF
