// Plays a program on a real node over a simulated machine, next to a model of it.
//
// One thread, no real time: the same bytes play the same way, whatever the machine does that runs
// them. What a call answers must be what the model foresees; every row that is swapped in must have
// the bytes that the model knows; in the end nothing may be left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/host_pool/host_pool.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"
#include "tests/fuzz/target.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/model.h"
#include "tests/simulation/program.h"

namespace kvtier::simulation {

class Simulation {
 public:
  Simulation();
  ~Simulation();

  // Once. Errors: the first thing that was not as foreseen.
  absl::Status Play(absl::string_view program, fuzz::Played* played);

 private:
  enum class Forecast { kOk, kRefused, kEither };

  struct Place {  // of a session in a cache
    std::shared_ptr<WorkerMemory> memory;
    int64_t tickets = 0;
    AttachResult attached;
  };
  struct Session {
    std::string id;
    bool alive = true;
    std::map<std::string, Place> places;
  };
  // A row that an operation in flight reads or writes.
  struct Reference {
    int64_t cache_key = 0;
    std::string cache;
    int32_t block = 0, row = 0, generation = 0;
    bool known = true, zero = false;
    uint8_t salt = 0;
    int32_t slot() const { return block * kBlockSize + row; }
  };

  // simulation.cc
  void PlayStep(const Step& step);
  void BeginCall(const Step& step, int session);
  // True if the call did what it was asked for.
  bool EndCall(const absl::Status& status, Forecast forecast, absl::string_view what);
  void Fail(absl::string_view what);
  void StartNode();
  void StopNode();
  void Settle();
  void CheckCache(const std::string& name, const ModelCache& cache);
  void CheckMemory(int session, const std::string& name, const ModelCache& cache);
  int PickSession(uint8_t from);
  ModelRequest* PickRequest(const Step& step, int* session, std::string* cache, std::string* id);

  // verbs.cc
  void Open();
  void Attach(const Step& step);
  void Detach(const Step& step);
  void Admit(const Step& step);
  void Release(const Step& step);
  void Assign(const Step& step);
  void Share(const Step& step);
  void DoAssign(const Step& step, int session, const std::string& cache, const std::string& id,
                int32_t count, const std::vector<int32_t>& shared,
                const std::vector<int32_t>& generations, bool may_share);
  void Free(const Step& step);
  void Invalidate(const Step& step);
  void Guess(const Step& step);
  void Close(const Step& step, bool evict);

  // steps.cc
  void Backup(const Step& step);
  void SwapIn(const Step& step);
  void CheckTicket(const absl::StatusOr<int64_t>& ticket, Place& place);
  ModelBlock* Find(const Reference& row);
  void OnBackup(const Reference& row, int session, const std::string& id, int64_t request_key,
                const OperationOutcome& outcome);
  void OnSwapIn(const std::vector<Reference>& rows, const WorkerMemory& memory,
                const OperationOutcome& outcome);

  absl::Time Soon() const { return machine_.Now() + absl::Seconds(30); }

  Machine machine_;
  std::unique_ptr<HostPool> pool_;
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
};

}  // namespace kvtier::simulation
