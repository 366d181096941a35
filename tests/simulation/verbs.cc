// The verbs of control, and what each must answer.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {
namespace {

constexpr Peer kPeer = {.pid = 1, .uid = 1000};

CacheLayout Layout(bool other) {
  CacheLayout layout = SmallLayout{.top_k = kTopK,
                                   .hot_size = kHotSize,
                                   .block_count = kBlockCount,
                                   .max_requests = kRequestsMax,
                                   .block_size = kBlockSize,
                                   .layers = kLayers,
                                   .row_bytes = kRowBytes}
                           .Make();
  if (other) layout.dtype_tag = "other";
  return layout;
}

}  // namespace

void Simulation::Open() {
  const auto id = node_->OpenSession("worker", kPeer, nullptr);
  if (id.ok() == model_.draining) Fail("a draining node opens no session, any other does");
  if (id.ok()) sessions_.push_back({.id = *id});
}

void Simulation::Close(const Step& step, bool evict) {
  const int session = PickSession(step.a);
  if (session < 0) return;
  if (evict) {
    const absl::Status evicted = node_->EvictSession(sessions_[session].id, "simulated");
    if (evicted.ok() != sessions_[session].alive) Fail("only what is open can be evicted");
  } else {
    node_->CloseSession(sessions_[session].id);
  }
  sessions_[session].alive = false;
  model_.Close(session);
}

void Simulation::Attach(const Step& step) {
  const int session = PickSession(step.a);
  if (session < 0) return;
  const std::string cache = step.b % 4 == 0 ? "other" : "kv";
  const bool wrong = step.b >= 240;
  const bool attached = model_.Attached(session, cache) != nullptr;
  Forecast forecast = Forecast::kOk;
  if (model_.memory_in_limbo) forecast = Forecast::kEither;
  if (model_.draining && !attached) forecast = Forecast::kRefused;
  if (wrong && model_.caches.count(cache) > 0) forecast = Forecast::kRefused;
  // A cache of another layout would be one; the simulation has no use for it.
  if (wrong && model_.caches.count(cache) == 0) return;
  if (!sessions_[session].alive) forecast = Forecast::kRefused;
  BeginCall(step, session);
  const auto result = node_->AttachCache(sessions_[session].id, cache, Layout(wrong), "", Soon());
  if (!result.ok()) model_.memory_in_limbo = true;
  if (!EndCall(result.status(), forecast, "attach") || attached) return;
  if (model_.Attach(session, cache) != result->created) Fail("attach: created or joined");
  Place& place = sessions_[session].places[cache];
  place = {std::make_shared<WorkerMemory>(node_.get(), kPeer, *result), 0, *result};
}

void Simulation::Detach(const Step& step) {
  int session = 0;
  std::string cache, id;
  PickRequest(step, &session, &cache, &id);
  if (session < 0) return;
  const bool there = sessions_[session].alive && model_.Attached(session, cache) != nullptr;
  BeginCall(step, session);
  const auto ended = node_->DetachCache(sessions_[session].id, cache, Soon());
  const bool lost = lease_lost_;
  EndCall(ended.status(), there ? Forecast::kOk : Forecast::kRefused, "detach");
  if (!ended.ok() || lost) return;
  model_.Leave(session, cache);
  if (*ended != (model_.caches.count(cache) == 0)) Fail("detach: the last one ends the cache");
}

void Simulation::Admit(const Step& step) {
  int session = 0;
  std::string cache, id;
  PickRequest(step, &session, &cache, &id);
  if (session < 0) return;
  // PickRequest prefers what there is; an admission wants a new one.
  if (step.b % 8 != 0) id = absl::StrCat("r", step.b % (kRequestsMax + 1));
  const int32_t reserve = step.c % 8 == 0 ? (step.c % 64) / 8 * 2 : 0;
  ModelCache* const attached = model_.Attached(session, cache);
  const ModelRequest* const existing = attached == nullptr ? nullptr : attached->Find(session, id);
  Forecast forecast = Forecast::kOk;
  if (!sessions_[session].alive || attached == nullptr) {
    forecast = Forecast::kRefused;
  } else if (existing != nullptr) {
    if (existing->reserve != reserve) forecast = Forecast::kRefused;
  } else if (model_.draining || reserve > attached->free_at_most() ||
             attached->sessions[session].size() >= kRequestsMax) {
    forecast = Forecast::kRefused;
  } else if (reserve > attached->free_surely()) {
    forecast = Forecast::kEither;
  }
  const int32_t region_before = existing == nullptr ? -1 : existing->region;
  BeginCall(step, session);
  const auto region = node_->AdmitRequest(sessions_[session].id, cache, id, reserve, Soon());
  if (!EndCall(region.status(), forecast, "admit")) return;
  if (existing != nullptr) {
    if (*region != region_before) Fail("admit: the same request has another region");
    return;
  }
  for (const auto& [other, request] : attached->sessions[session]) {
    if (request.region == *region) Fail("admit: a region has two requests");
  }
  attached->sessions[session][id] = {
      .key = model_.NewKey(), .region = *region, .reserve = reserve, .reserve_left = reserve};
}

void Simulation::Release(const Step& step) {
  int session = 0;
  std::string cache, id;
  ModelRequest* const request = PickRequest(step, &session, &cache, &id);
  if (session < 0) return;
  BeginCall(step, session);
  const auto freed = node_->ReleaseRequest(sessions_[session].id, cache, id, Soon());
  if (!EndCall(freed.status(), request != nullptr ? Forecast::kOk : Forecast::kRefused,
               "release")) {
    return;
  }
  ModelCache& attached = *model_.Attached(session, cache);
  const int32_t used = attached.used();
  attached.Drop(*request, false);
  attached.sessions[session].erase(id);
  if (*freed != used - attached.used()) Fail("release: blocks freed");
}

void Simulation::Assign(const Step& step) {
  int session = 0;
  std::string cache, id;
  PickRequest(step, &session, &cache, &id);
  if (session >= 0) DoAssign(step, session, cache, id, step.c % 5, {}, {}, true);
}

// Blocks that another request holds, with new ones behind them.
void Simulation::Share(const Step& step) {
  int session = 0;
  std::string cache, id;
  const ModelRequest* const request = PickRequest(step, &session, &cache, &id);
  if (request == nullptr) return;
  const ModelCache& attached = *model_.Attached(session, cache);
  std::vector<int32_t> shared, generations;
  bool may_share = true;
  for (int32_t i = 0; i < 1 + step.c % 2; ++i) {
    const int32_t block = (step.b * 7 + step.c + i * 5) % kBlockCount;
    const ModelBlock& model = attached.blocks[block];
    if (model.holders.empty() && model.limbo) return;  // either would be right
    may_share = may_share && !model.holders.empty() && model.holders.count(request->key) == 0;
    shared.push_back(block);
    generations.push_back(model.generation - (step.c % 16 == 7));
  }
  if (step.c % 16 == 7 || (shared.size() == 2 && shared[0] == shared[1])) may_share = false;
  if (step.c % 4 == 2) generations.clear();
  DoAssign(step, session, cache, id, step.c % 3, shared, generations, may_share);
}

void Simulation::DoAssign(const Step& step, int session, const std::string& cache,
                          const std::string& id, int32_t count, const std::vector<int32_t>& shared,
                          const std::vector<int32_t>& generations, bool may_share) {
  ModelCache* const attached = model_.Attached(session, cache);
  ModelRequest* const request = attached == nullptr ? nullptr : attached->Find(session, id);
  Forecast forecast = Forecast::kRefused;
  if (request != nullptr && sessions_[session].alive && !model_.draining && may_share &&
      count + shared.size() > 0 && request->table.size() + count + shared.size() <= kBlockCount) {
    const int32_t from_others = count - std::min(request->reserve_left, count);
    if (from_others <= attached->free_surely()) {
      forecast = Forecast::kOk;
    } else if (from_others <= attached->free_at_most()) {
      forecast = Forecast::kEither;
    }
  }
  BeginCall(step, session);
  const auto assigned =
      node_->AssignBlocks(sessions_[session].id, cache, id, count, shared, generations, Soon());
  if (!EndCall(assigned.status(), forecast, "assign")) return;
  if (assigned->table_index != static_cast<int32_t>(request->table.size())) {
    return Fail("assign: where the blocks begin");
  }
  request->reserve_left -= std::min(request->reserve_left, count);
  for (size_t i = 0; i < assigned->block_ids.size(); ++i) {
    const int32_t block = assigned->block_ids[i];
    ModelBlock& model = attached->blocks.at(block);
    if (i < shared.size()) {
      if (block != shared[i]) Fail("assign: shared blocks come first");
    } else {
      if (!model.holders.empty()) Fail(absl::StrCat("assign: block ", block, " is another's"));
      if (assigned->generations[i] <= model.generation) Fail("assign: a generation came again");
      model = {.generation = assigned->generations[i]};
    }
    model.holders.insert(request->key);
    request->table.push_back(block);
  }
}

void Simulation::Free(const Step& step) {
  int session = 0;
  std::string cache, id;
  ModelRequest* const request = PickRequest(step, &session, &cache, &id);
  if (session < 0) return;
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < 1 + step.c % 3; ++i) {
    const bool own = request != nullptr && !request->table.empty() && step.c % 16 != 15;
    blocks.push_back(own ? request->table[(step.b + 3 * i) % request->table.size()]
                         : (step.b + i) % (kBlockCount + 1));
  }
  bool may =
      request != nullptr && std::set<int32_t>(blocks.begin(), blocks.end()).size() == blocks.size();
  for (const int32_t block : blocks) {
    may = may && block >= 0 && block < kBlockCount &&
          model_.Attached(session, cache)->blocks[block].holders.count(request->key) > 0;
  }
  BeginCall(step, session);
  const auto freed = node_->FreeBlocks(sessions_[session].id, cache, id, blocks, Soon());
  if (!EndCall(freed.status(), may ? Forecast::kOk : Forecast::kRefused, "free")) return;
  ModelCache& attached = *model_.Attached(session, cache);
  const int32_t used = attached.used();
  for (const int32_t block : blocks) {
    attached.blocks[block].holders.erase(request->key);
    std::replace(request->table.begin(), request->table.end(), block, -1);
  }
  while (!request->table.empty() && request->table.back() == -1) request->table.pop_back();
  if (*freed != used - attached.used()) Fail("free: blocks freed");
}

void Simulation::Invalidate(const Step& step) {
  int session = 0;
  std::string cache, id;
  PickRequest(step, &session, &cache, &id);
  if (session < 0) return;
  const int32_t block = step.c % (kBlockCount + 1);
  ModelCache* const attached = model_.Attached(session, cache);
  Forecast forecast = Forecast::kRefused;
  if (attached != nullptr && sessions_[session].alive && block < kBlockCount) {
    const ModelBlock& model = attached->blocks[block];
    if (!model.holders.empty()) {
      forecast = Forecast::kOk;
    } else if (model.limbo) {
      forecast = Forecast::kEither;
    }
  }
  BeginCall(step, session);
  EndCall(node_->InvalidateBlocks(sessions_[session].id, cache, {block}, Soon()).status(), forecast,
          "invalidate");
}

// Tokens are good once, for the session's own user, while the session is attached.
void Simulation::Guess(const Step& step) {
  const int session = PickSession(step.a);
  if (node_->RedeemToken("guessed", kPeer).ok()) Fail("a guess was a token");
  if (session < 0 || model_.Attached(session, "kv") == nullptr) return;
  BeginCall({.verb = step.verb}, session);
  const auto again = node_->AttachCache(sessions_[session].id, "kv", Layout(false), "", Soon());
  if (!EndCall(again.status(), Forecast::kOk, "attach again")) return;
  if (again->created) Fail("attach again: created");
  const SegmentInfo& segment = again->segments[step.b % again->segments.size()];
  if (node_->RedeemToken(segment.fd_token, {.pid = 1, .uid = 1001}).ok())
    Fail("another user's token");
  if (!node_->RedeemToken(segment.fd_token, kPeer).ok()) Fail("a token was not taken");
  if (node_->RedeemToken(segment.fd_token, kPeer).ok()) Fail("a token was good twice");
}

}  // namespace kvtier::simulation
