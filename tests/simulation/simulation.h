// Plays a program on a real node over a simulated machine, next to a model of it.
//
// One thread, no real time: the same bytes play the same way, whatever the machine does that runs
// them. What a call answers must be what the model foresees; every row that is swapped in must have
// the bytes that the model knows; in the end nothing may be left.
//
// A program with a kill in it, or a restart that says so, has a pool folder: what was completed
// before must be there afterwards, whenever it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/host_pool/host_pool.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"
#include "tests/fuzz/target.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/model.h"
#include "tests/simulation/pool_disk.h"
#include "tests/simulation/program.h"

namespace kvtier::simulation {

// The layout that the simulation's caches of a name have; or another one.
CacheLayout LayoutOf(absl::string_view cache, bool other = false);
// Cannot be a cache's name.
inline constexpr char kAllCaches[] = "*";
// So many have room in the pool.
inline constexpr int kCachesMax = 2;
inline constexpr absl::Duration kReattachDuration = absl::Minutes(5);
inline constexpr Peer kPeer = {.pid = 1, .uid = 1000};

class Simulation {
 public:
  explicit Simulation(absl::string_view program);
  ~Simulation();

  // Once. Errors: the first thing that was not as foreseen.
  absl::Status Play(fuzz::Played* played);

 private:
  enum class Forecast { kOk, kRefused, kEither };

  struct Place {  // of a session in a cache
    std::shared_ptr<WorkerMemory> memory;
    int64_t tickets = 0;
    AttachResult attached;
  };
  struct Session {
    std::string id;
    int64_t run = 0;  // of the daemon
    bool alive = true;
    std::map<std::string, Place> places;
  };
  // A row that an operation in flight reads or writes.
  struct Reference {
    int64_t run = 0, cache_key = 0;
    std::string cache;
    int32_t block = 0, row = 0, generation = 0;
    bool may_be_zero = false, may_be_salt = false;
    uint8_t salt = 0;
    int32_t slot() const { return block * kBlockSize + row; }
  };
  // What a new daemon found of a cache.
  struct Found {
    std::shared_ptr<WorkerMemory> memory;
    std::map<int32_t, KeptBlockInfo> kept;  // by block
    Retention retention;
    absl::Time left;  // when the session that looked did

    int32_t Backed(int32_t slot) const;  // generation
    bool HostRowIs(int32_t slot, uint8_t salt) const;
  };

  // simulation.cc
  void PlayStep(const Step& step);
  void PlayVerb(const Step& step);
  void BeginCall(const Step& step, int session);
  // True if the call did what it was asked for.
  bool EndCall(const absl::Status& status, Forecast forecast, absl::string_view what);
  void Fail(absl::string_view what);
  void Settle();
  void CheckCache(const std::string& name, const ModelCache& cache);
  void CheckRequests(const std::string& name, ModelCache* cache);
  void CheckKept(const std::string& name, ModelCache* cache);
  void CheckMemory(int session, const std::string& name, const ModelCache& cache);
  int PickSession(uint8_t from) const;
  std::vector<std::pair<int, std::string>> Attachments() const;
  void PickAttachment(const Step& step, int* session, std::string* cache);
  ModelRequest* PickRequest(const Step& step, bool with_blocks, int* session, std::string* cache,
                            std::string* id);
  void Prepare(const Step& step);

  // lives.cc
  void Start();
  void StopNode();
  void Restart(const Step& step);
  void Kill(const Step& step);
  void Expire(const Step& step);
  // The next daemon on what the last one left: all of its pool, or `image` of it.
  void Follow(const PoolImage* image, const Step& step);

  // found.cc: what a daemon finds of the one before.
  // Returns the cache whose file it damaged, kAllCaches, or "".
  std::string Damage(PoolImage* image, const Step& step) const;
  void Adopt(const Model& after, const std::string& damaged);
  void AdoptOne(const std::string& name, const Model& after);
  // OK, and `cache` is what was found; or what is wrong.
  absl::Status Judge(const Found& found, const ModelCache* before, const ModelCache* after,
                     ModelCache* cache);
  absl::Status JudgeBlock(const Found& found, int32_t id, const ModelBlock* before,
                          const ModelBlock* after, ModelBlock* is) const;
  Found Find(const std::string& name);

  // attaching.cc
  void Open();
  void Attach(const Step& step);
  Forecast ForecastAttach(int session, const std::string& cache, bool wrong) const;
  void CheckDropped(const std::string& attached, bool exact);
  void NoteExpiry(const std::string& name, absl::Time begin);
  void Detach(const Step& step);
  void Close(const Step& step, bool evict);

  // verbs.cc
  void Admit(const Step& step);
  void Release(const Step& step);
  void Assign(const Step& step);
  void Share(const Step& step);
  void DoAssign(const Step& step, int session, const std::string& cache, const std::string& id,
                int32_t count, const std::vector<int32_t>& shared,
                const std::vector<int32_t>& generations, bool may_share);
  void NoteUndone(int session, const std::string& cache, const std::string& id, int32_t count);
  void NoteAssigned(const AssignResult& assigned, ModelCache* attached, ModelRequest* request,
                    const std::vector<int32_t>& shared);
  void Free(const Step& step);
  void Invalidate(const Step& step);
  void Guess(const Step& step);

  // steps.cc
  void Backup(const Step& step);
  void SwapIn(const Step& step);
  void CheckTicket(const absl::StatusOr<int64_t>& ticket, Place& place);
  ModelBlock* Find(const Reference& row);
  void OnBackup(const Reference& row, int session, const std::string& id, int64_t request_key,
                const OperationOutcome& outcome);
  void OnSwapIn(const std::vector<Reference>& rows, int session, const WorkerMemory& memory,
                const OperationOutcome& outcome);

  absl::Time Soon() const { return machine_.Now() + absl::Seconds(30); }

  const std::vector<Step> steps_;
  const bool has_folder_;
  Machine machine_;
  std::unique_ptr<HostPool> folder_pool_;
  HostPool* pool_ = nullptr;
  std::unique_ptr<Node> node_;
  Model model_;
  std::vector<Session> sessions_;
  int64_t in_flight_ = 0;  // operations whose callbacks have not run
  absl::Status failure_;
  fuzz::Played* played_ = nullptr;
  // Of the call at work.
  Weather weather_ = Weather::kPrompt;
  bool lease_lost_ = false;
  int caller_ = -1;
  int64_t faults_before_ = 0;
  absl::Time left_time_;  // when the lease was lost
  // Of the daemon that is to be killed.
  int64_t run_ = 1;
  bool kill_planned_ = false;
  Step kill_;
  std::unique_ptr<PoolImage> image_;
  Model before_;  // the verb in which it happens
  bool attaching_ = false, assigning_ = false;
};

}  // namespace kvtier::simulation
