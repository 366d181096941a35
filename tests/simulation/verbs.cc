// The verbs of requests and blocks, and what each must answer.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {

void Simulation::Admit(const Step& step) {
  int session = 0;
  std::string cache;
  PickAttachment(step, &session, &cache);
  if (session < 0) return;
  const std::string id = absl::StrCat("r", step.b / 8 % (kRequestsMax + 1));
  const int32_t reserve = step.c % 2 == 0 ? step.c % 64 / 8 : 0;
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
  const int32_t set_aside = attached == nullptr ? 0 : attached->reserved();
  BeginCall(step, session);
  const auto region = node_->AdmitRequest(sessions_[session].id, cache, id, reserve, Soon());
  if (!EndCall(region.status(), forecast, "admit")) {
    if (forecast != Forecast::kRefused) NoteUndone(session, cache, id, 0);
    return;
  }
  if (existing != nullptr) {
    if (*region != region_before) Fail("admit: the same request has another region");
    return;
  }
  for (const auto& [other, request] : attached->sessions[session]) {
    if (request.region == *region) Fail("admit: a region has two requests");
  }
  for (const int32_t slot : sessions_[session].places.at(cache).memory->Owner(0, *region)) {
    if (slot >= 0) Fail("admit: a region with rows in it");
  }
  attached->MakeFree(set_aside + reserve);
  attached->sessions[session][id] = {
      .key = model_.NewKey(), .region = *region, .reserve = reserve, .reserve_left = reserve};
}

void Simulation::Release(const Step& step) {
  int session = 0;
  std::string cache, id;
  ModelRequest* const request = PickRequest(step, false, &session, &cache, &id);
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
  PickRequest(step, false, &session, &cache, &id);
  if (session >= 0) DoAssign(step, session, cache, id, step.c % 5, {}, {}, true);
}

// Blocks that another request holds or that are kept, with new ones behind them.
void Simulation::Share(const Step& step) {
  int session = 0;
  std::string cache, id;
  const ModelRequest* const request = PickRequest(step, false, &session, &cache, &id);
  if (request == nullptr) return;
  const ModelCache& attached = *model_.Attached(session, cache);
  std::vector<int32_t> shared, generations;
  bool may_share = true, any_kept = false;
  for (int32_t i = 0; i < 1 + step.c % 2; ++i) {
    const int32_t block = (step.b * 7 + step.c + i * 5) % kBlockCount;
    const ModelBlock& model = attached.blocks[block];
    if (model.holders.empty() && model.limbo) return;  // either would be right
    if (model.kept && !attached.kept_is_certain()) return;
    any_kept |= model.kept;
    may_share = may_share && (model.kept || !model.holders.empty()) &&
                model.holders.count(request->key) == 0;
    shared.push_back(block);
    generations.push_back(model.generation - (step.c % 16 == 7));
  }
  if (step.c % 16 == 7 || (shared.size() == 2 && shared[0] == shared[1])) may_share = false;
  if (step.c % 4 == 2) {
    generations.clear();
    may_share &= !any_kept;
  }
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
    // What is taken up again cannot be given out.
    const auto taken_up =
        attached->guarded ? 0 : std::count_if(shared.begin(), shared.end(), [&](int32_t block) {
          return attached->blocks[block].kept;
        });
    const int32_t from_others =
        count - std::min(request->reserve_left, count) + static_cast<int32_t>(taken_up);
    if (from_others <= attached->free_surely()) {
      forecast = Forecast::kOk;
    } else if (from_others <= attached->free_at_most()) {
      forecast = Forecast::kEither;
    }
  }
  assigning_ = true;
  BeginCall(step, session);
  const auto assigned =
      node_->AssignBlocks(sessions_[session].id, cache, id, count, shared, generations, Soon());
  if (!EndCall(assigned.status(), forecast, "assign")) {
    if (forecast != Forecast::kRefused) NoteUndone(session, cache, id, count);
    return;
  }
  if (assigned->table_index != static_cast<int32_t>(request->table.size())) {
    return Fail("assign: where the blocks begin");
  }
  NoteAssigned(*assigned, attached, request, shared);
}

// The call may have taken `count` blocks, and has given them back.
void Simulation::NoteUndone(int session, const std::string& cache, const std::string& id,
                            int32_t count) {
  const auto found = model_.caches.find(cache);
  if (found == model_.caches.end()) return;
  ModelRequest* const request = found->second.Find(session, id);
  const int32_t drawn = request == nullptr ? 0 : std::min(request->reserve_left, count);
  found->second.Undo(drawn);
  if (drawn > 0) request->reserve_sure = false;
}

void Simulation::NoteAssigned(const AssignResult& assigned, ModelCache* attached,
                              ModelRequest* request, const std::vector<int32_t>& shared) {
  const auto count = static_cast<int32_t>(assigned.block_ids.size() - shared.size());
  for (const int32_t block : shared) {
    attached->blocks[block].kept = false;
    attached->blocks[block].holders.insert(request->key);
  }
  const int32_t drawn = std::min(request->reserve_left, count);
  attached->MakeFree(attached->reserved() - drawn + count);
  request->reserve_left -= drawn;
  for (size_t i = 0; i < assigned.block_ids.size(); ++i) {
    const int32_t block = assigned.block_ids[i];
    ModelBlock& model = attached->blocks.at(block);
    if (i < shared.size()) {
      if (block != shared[i]) Fail("assign: shared blocks come first");
    } else {
      if (!model.holders.empty()) Fail(absl::StrCat("assign: block ", block, " is another's"));
      if (model.kept && (attached->kept_is_certain() || attached->guarded)) {
        Fail(absl::StrCat("assign: block ", block, " is kept"));
      }
      if (assigned.generations[i] <= model.generation) Fail("assign: a generation came again");
      model = {.generation = assigned.generations[i]};
    }
    model.holders.insert(request->key);
    request->table.push_back(block);
  }
}

void Simulation::Free(const Step& step) {
  int session = 0;
  std::string cache, id;
  ModelRequest* const request = PickRequest(step, true, &session, &cache, &id);
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
    attached.DropBlock(&attached.blocks[block], request->key);
    std::replace(request->table.begin(), request->table.end(), block, -1);
  }
  while (!request->table.empty() && request->table.back() == -1) request->table.pop_back();
  if (*freed != used - attached.used()) Fail("free: blocks freed");
}

void Simulation::Invalidate(const Step& step) {
  int session = 0;
  std::string cache;
  PickAttachment(step, &session, &cache);
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
  const auto again = node_->AttachCache(sessions_[session].id, "kv", LayoutOf("kv"), "", Soon());
  if (!EndCall(again.status(), Forecast::kOk, "attach again")) return;
  if (again->created) Fail("attach again: created");
  const SegmentInfo& segment = again->segments[step.b % again->segments.size()];
  if (node_->RedeemToken(segment.fd_token, {.pid = 1, .uid = 1001}).ok())
    Fail("another user's token");
  if (!node_->RedeemToken(segment.fd_token, kPeer).ok()) Fail("a token was not taken");
  if (node_->RedeemToken(segment.fd_token, kPeer).ok()) Fail("a token was good twice");
}

}  // namespace kvtier::simulation
