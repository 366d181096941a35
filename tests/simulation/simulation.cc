#include "tests/simulation/simulation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"

namespace kvtier::simulation {
namespace {

constexpr int64_t kPoolBytes = int64_t{8} << 20;

// What a device that is late, or memory that is on its way back, may answer with.
bool IsTemporary(absl::string_view reason) {
  return reason == "DEADLINE" || reason == "REGIONS_EXHAUSTED" || reason == "BLOCKS_EXHAUSTED" ||
         reason == "POOL_EXHAUSTED" || reason == "DEVICE_MEMORY_EXHAUSTED";
}

}  // namespace

Simulation::Simulation() {
  pool_ = *HostPool::Create({.size_bytes = kPoolBytes,
                             .huge_pages = HugePages::kNever,
                             .touch_threads = 1,
                             .chunk_bytes = kPoolBytes},
                            &machine_.backend());
  pool_->Start([](int64_t, int64_t) {});
  pool_->WaitReady(absl::InfiniteFuture()).IgnoreError();
  StartNode();
}

Simulation::~Simulation() = default;

void Simulation::StartNode() {
  node_ = std::make_unique<Node>(NodeOptions{.version = "simulation", .reaper_threads = 0},
                                 &machine_, &machine_.backend(), pool_.get());
  machine_.SetNode(node_.get());
}

// As a daemon that ends: whatever is in flight is done, and nothing is left.
void Simulation::StopNode() {
  machine_.plan().Clear();
  machine_.SetWeather(Weather::kPrompt, 1);
  node_->CloseAllSessions("the node ends", absl::InfiniteFuture()).IgnoreError();
  machine_.Settle();
  if (in_flight_ != 0) Fail(absl::StrCat(in_flight_, " operations never ended"));
  if (node_->DeviceBytesUsed(kCpuDeviceUuid) != 0) Fail("device memory was left");
  if (pool_->stats().used_bytes != 0) Fail("memory of the pool was left");
  machine_.SetNode(nullptr);
  node_.reset();
  model_.caches.clear();
  model_.draining = false;
  model_.Settle();
  for (Session& session : sessions_) session.alive = false;
}

absl::Status Simulation::Play(absl::string_view program, fuzz::Played* played) {
  played_ = played;
  for (const Step& step : ParseProgram(program)) {
    ++played->operations;
    PlayStep(step);
    if (!failure_.ok()) break;
  }
  if (failure_.ok()) Settle();
  StopNode();
  return failure_;
}

void Simulation::Fail(absl::string_view what) {
  if (failure_.ok()) failure_ = absl::InternalError(what);
}

void Simulation::PlayStep(const Step& step) {
  switch (step.verb) {
    case Verb::kOpen:
      return Open();
    case Verb::kClose:
      return Close(step, false);
    case Verb::kEvict:
      return Close(step, true);
    case Verb::kAttach:
      return Attach(step);
    case Verb::kDetach:
      return Detach(step);
    case Verb::kAdmit:
      return Admit(step);
    case Verb::kRelease:
      return Release(step);
    case Verb::kAssign:
      return Assign(step);
    case Verb::kShare:
      return Share(step);
    case Verb::kFree:
      return Free(step);
    case Verb::kInvalidate:
      return Invalidate(step);
    case Verb::kBackup:
      return Backup(step);
    case Verb::kSwapIn:
      return SwapIn(step);
    case Verb::kStep:
      for (int i = step.b % 4; i >= 0; --i) machine_.Step(step.a);
      return;
    case Verb::kReap:
      node_->RunReaper();
      return;
    case Verb::kAdvance:
      return machine_.Advance(absl::Milliseconds(step.a * 10));
    case Verb::kSettle:
      return Settle();
    case Verb::kFault:
      return machine_.plan().FailNthCall(
          1 + step.a % 12, MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected"));
    case Verb::kRestart:
      StopNode();
      return StartNode();
    case Verb::kDrain:
      node_->Drain("simulated");
      model_.draining = true;
      return;
    case Verb::kGuess:
      return Guess(step);
  }
}

void Simulation::BeginCall(const Step& step, int session) {
  weather_ = static_cast<Weather>(step.c >> 6);
  lease_lost_ = false;
  caller_ = session;
  faults_before_ = machine_.plan().faults();
  machine_.SetWeather(weather_, step.c + 256u * step.b, [this] {
    if (weather_ != Weather::kLostLease || caller_ < 0) return;
    node_->CloseSession(sessions_[caller_].id);
    lease_lost_ = true;
  });
}

bool Simulation::EndCall(const absl::Status& status, Forecast forecast, absl::string_view what) {
  machine_.SetWeather(Weather::kPrompt, 1);
  const bool faulted = machine_.plan().faults() > faults_before_;
  const std::string reason = ErrorReasonOf(status);
  if (status.ok()) {
    if (forecast == Forecast::kRefused) Fail(absl::StrCat(what, ": taken, and must be refused"));
  } else {
    ++played_->errors;
    const bool ours = reason.empty() || reason == "INTERNAL" || reason == "DEVICE_ERROR";
    if (ours && !faulted) Fail(absl::StrCat(what, ": ", status.ToString()));
    const bool slow = weather_ == Weather::kLate || weather_ == Weather::kMixed;
    const bool excused = faulted || lease_lost_ || (slow && IsTemporary(reason));
    if (forecast == Forecast::kOk && !excused) {
      Fail(absl::StrCat(what, ": refused, and must be taken: ", status.ToString()));
    }
  }
  if (lease_lost_ && caller_ >= 0) {
    model_.Close(caller_);
    sessions_[caller_].alive = false;
  }
  return status.ok() && !lease_lost_;
}

int Simulation::PickSession(uint8_t from) {
  if (sessions_.empty()) return -1;
  // The newest ones, mostly alive.
  const size_t recent = std::min<size_t>(sessions_.size(), 4);
  return static_cast<int>(sessions_.size() - 1 - from % recent);
}

// The request that a step means, or null; session, cache and id are set if there is a session.
ModelRequest* Simulation::PickRequest(const Step& step, int* session, std::string* cache,
                                      std::string* id) {
  *session = PickSession(step.a);
  *cache = (step.a & 0x40) == 0 || step.a >= 0xc0 ? "kv" : "other";
  *id = absl::StrCat("r", step.b % (kRequestsMax + 1));
  if (*session < 0) return nullptr;
  ModelCache* const attached = model_.Attached(*session, *cache);
  if (attached == nullptr || attached->sessions[*session].empty()) return nullptr;
  // Mostly one that there is.
  auto& requests = attached->sessions[*session];
  if (step.b < 230) {
    auto at = requests.begin();
    std::advance(at, step.b % requests.size());
    *id = at->first;
  }
  return attached->Find(*session, *id);
}

void Simulation::Settle() {
  machine_.Settle();
  if (in_flight_ != 0) Fail(absl::StrCat(in_flight_, " operations do not end"));
  model_.Settle();
  for (const auto& [name, cache] : model_.caches) CheckCache(name, cache);
  const auto alive = std::count_if(sessions_.begin(), sessions_.end(),
                                   [](const Session& session) { return session.alive; });
  if (static_cast<int64_t>(node_->Sessions().size()) != alive) Fail("number of sessions");
  const auto snapshot = node_->Snapshot("");
  if (!snapshot.ok() || snapshot->caches.size() != model_.caches.size()) Fail("number of caches");
}

void Simulation::CheckCache(const std::string& name, const ModelCache& cache) {
  const auto snapshot = node_->Snapshot(name);
  if (!snapshot.ok()) return Fail(absl::StrCat("no cache ", name));
  const CacheSnapshot& real = snapshot->caches.front();
  if (real.blocks_used != cache.used() || real.blocks_reserved != cache.reserved() ||
      real.blocks_quarantined != 0 || real.blocks_free != cache.free_at_most()) {
    return Fail(absl::StrCat(name, ": blocks used ", real.blocks_used, " reserved ",
                             real.blocks_reserved, " quarantined ", real.blocks_quarantined,
                             " free ", real.blocks_free, ", and must be ", cache.used(), " ",
                             cache.reserved(), " 0 ", cache.free_at_most()));
  }
  size_t requests = 0;
  for (const auto& [session, of_session] : cache.sessions) {
    requests += of_session.size();
    CheckMemory(session, name, cache);
  }
  const auto rows = node_->Requests(name);
  if (!rows.ok() || rows->size() != requests)
    return Fail(absl::StrCat(name, ": number of requests"));
  for (const RequestSnapshot& row : *rows) {
    const auto session = std::find_if(sessions_.begin(), sessions_.end(),
                                      [&](const Session& s) { return s.id == row.session_id; });
    const auto& of_session = cache.sessions.at(static_cast<int>(session - sessions_.begin()));
    const auto request = of_session.find(row.request_id);
    if (request == of_session.end() || request->second.region != row.region) {
      return Fail(absl::StrCat(name, ": request ", row.request_id));
    }
    const auto& table = request->second.table;
    const auto blocks =
        static_cast<int32_t>(table.size() - std::count(table.begin(), table.end(), -1));
    if (row.blocks != blocks) return Fail(absl::StrCat(name, ": blocks of ", row.request_id));
  }
}

// Tables, owners and order in the memory that a worker sees.
void Simulation::CheckMemory(int session, const std::string& name, const ModelCache& cache) {
  const WorkerMemory& memory = *sessions_[session].places.at(name).memory;
  for (const auto& [id, request] : cache.sessions.at(session)) {
    std::vector<int32_t> table = request.table;
    table.resize(kBlockCount, -1);
    if (memory.TableRow(request.region) != table) Fail(absl::StrCat(id, ": its block table"));
    std::set<int32_t> owned;
    for (const int32_t slot : memory.Owner(0, request.region)) {
      if (slot >= 0 && !owned.insert(slot).second) Fail("a slot is owned twice");
    }
    std::vector<int32_t> order = memory.Lru(0, request.region);
    std::sort(order.begin(), order.end());
    for (int32_t i = 0; i < kHotSize; ++i) {
      if (order[i] != i) return Fail("the LRU order is no permutation");
    }
  }
  for (int32_t block = 0; block < kBlockCount; ++block) {
    const ModelBlock& model = cache.blocks[block];
    if (!model.holders.empty() && memory.BlockGeneration(block) != model.generation) {
      return Fail(absl::StrCat("generation of block ", block));
    }
  }
}

}  // namespace kvtier::simulation
