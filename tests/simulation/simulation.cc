#include "tests/simulation/simulation.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier::simulation {
namespace {

// What a device that is late, or memory that is on its way back, may answer with.
bool IsTemporary(absl::string_view reason) {
  return reason == "DEADLINE" || reason == "REGIONS_EXHAUSTED" || reason == "BLOCKS_EXHAUSTED" ||
         reason == "POOL_EXHAUSTED" || reason == "DEVICE_MEMORY_EXHAUSTED";
}

// Arguments from here on are taken as they are, whatever there is.
constexpr uint8_t kPlain = 230;

// Does the pool outlive the daemon?
bool HasFolder(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.verb == Verb::kKill || (step.verb == Verb::kRestart && step.b % 2 == 1);
  });
}

}  // namespace

Simulation::Simulation(absl::string_view program)
    : steps_(ParseProgram(program)), has_folder_(HasFolder(steps_)) {
  Start();
}

absl::Status Simulation::Play(fuzz::Played* played) {
  played_ = played;
  for (const Step& step : steps_) {
    ++played->operations;
    PlayStep(step);
    if (!failure_.ok()) break;
  }
  machine_.Interrupt(0, nullptr);
  if (failure_.ok()) Settle();
  StopNode();
  return failure_;
}

void Simulation::Fail(absl::string_view what) {
  if (failure_.ok()) failure_ = absl::InternalError(what);
}

void Simulation::PlayStep(const Step& step) {
  attaching_ = assigning_ = false;
  if (kill_planned_) before_ = model_;
  Prepare(step);
  if (failure_.ok()) PlayVerb(step);
  if (image_ == nullptr || !failure_.ok()) return;
  // The daemon died in this verb: what it did afterwards never was.
  ++run_;
  StopNode();
  const std::unique_ptr<PoolImage> image = std::move(image_);
  Follow(image.get(), kill_);
}

void Simulation::PlayVerb(const Step& step) {
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
      return machine_.Advance(step.a * (step.c < 192 ? absl::Milliseconds(10) : absl::Seconds(3)));
    case Verb::kSettle:
      return Settle();
    case Verb::kFault:
      return machine_.plan().FailNthCall(
          1 + step.a % 12, MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected"));
    case Verb::kRestart:
      return Restart(step);
    case Verb::kDrain:
      if (step.b % 8 != 0) return;  // nothing comes after it but a restart
      node_->Drain("simulated");
      model_.draining = true;
      return;
    case Verb::kGuess:
      return Guess(step);
    case Verb::kExpire:
      return Expire(step);
    case Verb::kKill:
      return Kill(step);
  }
}

void Simulation::BeginCall(const Step& step, int session) {
  weather_ = static_cast<Weather>(step.c >> 6);
  lease_lost_ = false;
  caller_ = session;
  faults_before_ = machine_.plan().faults();
  machine_.SetWeather(weather_, step.c + 256u * step.b, [this] {
    if (weather_ != Weather::kLostLease || caller_ < 0) return;
    left_time_ = machine_.Now();
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
    model_.Close(caller_, left_time_);
    sessions_[caller_].alive = false;
  }
  return status.ok() && !lease_lost_;
}

int Simulation::PickSession(uint8_t from) const {
  if (sessions_.empty()) return -1;
  std::vector<int> alive;
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (sessions_[i].alive) alive.push_back(static_cast<int>(i));
  }
  if (from < kPlain && !alive.empty()) return alive[from % alive.size()];
  const size_t recent = std::min<size_t>(sessions_.size(), 4);
  return static_cast<int>(sessions_.size() - 1 - from % recent);
}

// Sessions with the caches that they are attached to.
std::vector<std::pair<int, std::string>> Simulation::Attachments() const {
  std::vector<std::pair<int, std::string>> all;
  for (const auto& [name, cache] : model_.caches) {
    for (const auto& [session, requests] : cache.sessions) all.emplace_back(session, name);
  }
  return all;
}

// The request that a step means, or null; session, cache and id are set if there is a session.
ModelRequest* Simulation::PickRequest(const Step& step, bool with_blocks, int* session,
                                      std::string* cache, std::string* id) {
  std::vector<std::tuple<int64_t, int, std::string, std::string>> all;
  for (const auto& [of_session, name] : Attachments()) {
    for (const auto& [request_id, request] : model_.caches[name].sessions[of_session]) {
      if (with_blocks && request.table.empty()) continue;
      all.emplace_back(request.key, of_session, name, request_id);
    }
  }
  std::sort(all.rbegin(), all.rend());
  if (step.b < kPlain && !all.empty()) {
    // Now and then the newest, else any.
    const size_t at = step.a % 4 == 0 ? 0 : step.a / 4 % all.size();
    std::tie(std::ignore, *session, *cache, *id) = all[at];
    return model_.caches[*cache].Find(*session, *id);
  }
  PickAttachment(step, session, cache);
  *id = absl::StrCat("r", step.b % (kRequestsMax + 1));
  return *session < 0 || model_.Attached(*session, *cache) == nullptr
             ? nullptr
             : model_.caches[*cache].Find(*session, *id);
}

void Simulation::PickAttachment(const Step& step, int* session, std::string* cache) {
  const auto attachments = Attachments();
  if (step.b < kPlain && !attachments.empty()) {
    std::tie(*session, *cache) = attachments[step.a % attachments.size()];
    return;
  }
  *session = PickSession(step.a);
  *cache = step.a % 4 == 0 ? "other" : step.a % 16 == 1 ? "third" : "kv";
}

// Most verbs need something: what is not there is made first.
void Simulation::Prepare(const Step& step) {
  using enum Verb;
  constexpr Verb kNeedBlocks[] = {kFree, kBackup, kSwapIn, kShare};
  constexpr Verb kNeedRequest[] = {kRelease, kAssign};
  constexpr Verb kNeedAttachment[] = {kDetach, kAdmit, kInvalidate};
  const auto is_of = [&](const auto& verbs) {
    return std::find(std::begin(verbs), std::end(verbs), step.verb) != std::end(verbs);
  };
  const int need = is_of(kNeedBlocks)       ? 4
                   : is_of(kNeedRequest)    ? 3
                   : is_of(kNeedAttachment) ? 2
                   : step.verb == kAttach   ? 1
                                            : 0;
  if (need == 0 || step.b >= kPlain || model_.draining) return;
  const bool any_alive = std::any_of(sessions_.begin(), sessions_.end(),
                                     [](const Session& session) { return session.alive; });
  if (!any_alive) Open();
  if (need >= 2 && Attachments().empty()) Attach({kAttach, step.a, 3, 0});
  int session = -1;
  std::string cache, id;
  const Step any = {kAdmit, step.a, static_cast<uint8_t>(step.b % 8 * 8 + 1), 1};
  if (need >= 3 && PickRequest(any, false, &session, &cache, &id) == nullptr) Admit(any);
  if (need >= 4 && PickRequest(any, true, &session, &cache, &id) == nullptr) {
    Assign({kAssign, any.a, any.b, 2});
  }
}

void Simulation::Settle() {
  machine_.Settle();
  if (in_flight_ != 0) Fail(absl::StrCat(in_flight_, " operations do not end"));
  model_.Settle();
  for (auto& [name, cache] : model_.caches) {
    CheckRequests(name, &cache);
    CheckKept(name, &cache);
    CheckCache(name, cache);
  }
  const auto alive = std::count_if(sessions_.begin(), sessions_.end(),
                                   [](const Session& session) { return session.alive; });
  if (static_cast<int64_t>(node_->Sessions().size()) != alive) Fail("number of sessions");
  const auto snapshot = node_->Snapshot("");
  if (!snapshot.ok() || snapshot->caches.size() != model_.caches.size()) Fail("number of caches");
}

// Lists kept blocks, if a session can.
void Simulation::CheckKept(const std::string& name, ModelCache* cache) {
  if (cache->sessions.empty()) return;
  const std::string& session = sessions_[cache->sessions.begin()->first].id;
  const auto listed = node_->ListKeptBlocks(session, name, 0, kBlockCount);
  if (!listed.ok()) return Fail(absl::StrCat(name, ": ", listed.status().ToString()));
  std::set<int32_t> kept;
  for (const KeptBlockInfo& info : *listed) {
    const ModelBlock& block = cache->blocks[info.block_id];
    if (!block.kept) Fail(absl::StrCat(name, ": block ", info.block_id, " must not be kept"));
    if (info.generation != block.generation) Fail("generation of a kept block");
    kept.insert(info.block_id);
  }
  if (cache->kept_known && static_cast<int32_t>(kept.size()) != cache->kept()) {
    Fail(absl::StrCat(name, ": ", kept.size(), " blocks are kept, not ", cache->kept()));
  }
  for (int32_t i = 0; i < kBlockCount; ++i) {
    cache->blocks[i].kept &= kept.count(i) > 0;
    if (!cache->kept_known) cache->blocks[i].kept_age = 0;  // in which order is not known
  }
  cache->kept_known = cache->guarded || cache->kept() <= cache->kept_max;
}

void Simulation::CheckCache(const std::string& name, const ModelCache& cache) {
  const auto snapshot = node_->Snapshot(name);
  if (!snapshot.ok()) return Fail(absl::StrCat("no cache ", name));
  const CacheSnapshot& real = snapshot->caches.front();
  const int32_t left = kBlockCount - cache.used() - cache.reserved();
  if (real.blocks_used != cache.used() || real.blocks_reserved != cache.reserved() ||
      real.blocks_quarantined != 0 || real.blocks_free + real.blocks_kept != left ||
      (cache.kept_known && real.blocks_kept != cache.kept())) {
    return Fail(absl::StrCat(name, ": blocks used ", real.blocks_used, " reserved ",
                             real.blocks_reserved, " quarantined ", real.blocks_quarantined,
                             " kept ", real.blocks_kept, " free ", real.blocks_free,
                             ", and must be ", cache.used(), " ", cache.reserved(), " 0 ",
                             cache.kept(), " ", left - cache.kept()));
  }
  if (real.retention.duration != cache.retention.duration ||
      real.retention.blocks_max != cache.retention.blocks_max) {
    Fail(absl::StrCat(name, ": how long it is retained"));
  }
  const bool used = !cache.sessions.empty();
  if (real.expires_time != (used ? std::nullopt : std::optional(cache.expires))) {
    Fail(absl::StrCat(name, ": when it ends"));
  }
  for (const auto& [session, of_session] : cache.sessions) CheckMemory(session, name, cache);
}

void Simulation::CheckRequests(const std::string& name, ModelCache* cache) {
  size_t requests = 0;
  for (const auto& [session, of_session] : cache->sessions) requests += of_session.size();
  const auto rows = node_->Requests(name);
  if (!rows.ok() || rows->size() != requests)
    return Fail(absl::StrCat(name, ": number of requests"));
  for (const RequestSnapshot& row : *rows) {
    const auto session = std::find_if(sessions_.begin(), sessions_.end(),
                                      [&](const Session& s) { return s.id == row.session_id; });
    auto& of_session = cache->sessions.at(static_cast<int>(session - sessions_.begin()));
    const auto request = of_session.find(row.request_id);
    if (request != of_session.end() && !request->second.reserve_sure &&
        row.reserved_blocks <= request->second.reserve) {
      request->second.reserve_left = std::max(request->second.reserve_left, row.reserved_blocks);
      request->second.reserve_sure = true;
    }
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
