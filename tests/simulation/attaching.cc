// The verbs of sessions and caches, and what each must answer.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {

CacheLayout LayoutOf(absl::string_view cache, bool other) {
  CacheLayout layout = SmallLayout{.top_k = kTopK,
                                   .hot_size = kHotSize,
                                   .block_count = kBlockCount,
                                   .max_requests = kRequestsMax,
                                   .block_size = kBlockSize,
                                   .layers = kLayers,
                                   .row_bytes = kRowBytes}
                           .Make();
  if (cache == "other") layout.eviction_policy = EvictionPolicy::kAged;
  if (cache == "third") layout.share_rows = true;
  if (other) layout.dtype_tag = "other";
  return layout;
}

void Simulation::Open() {
  const auto id = node_->OpenSession("worker", kPeer, nullptr);
  if (id.ok() == model_.draining) Fail("a draining node opens no session, any other does");
  if (id.ok()) sessions_.push_back({.id = *id, .run = run_});
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
  model_.Close(session, machine_.Now());
}

Simulation::Forecast Simulation::ForecastAttach(int session, const std::string& cache,
                                                bool wrong) const {
  const auto found = model_.caches.find(cache);
  const bool there = found != model_.caches.end();
  const bool attached = there && found->second.sessions.count(session) > 0;
  if (!sessions_[session].alive || (wrong && there) || (model_.draining && !attached)) {
    return Forecast::kRefused;
  }
  if (model_.memory_in_limbo) return Forecast::kEither;
  if (there || model_.caches.size() < kCachesMax) return Forecast::kOk;
  // One that nobody uses gives way.
  const bool room = std::any_of(model_.caches.begin(), model_.caches.end(),
                                [&](const auto& item) { return model_.MayEnd(item.second); });
  return room ? Forecast::kOk : Forecast::kRefused;
}

// Caches without sessions that gave way to the one that was to be made.
void Simulation::CheckDropped(const std::string& attached, bool exact) {
  std::vector<std::string> missing;
  const NodeSnapshot snapshot = *node_->Snapshot("");
  const auto there = [&](const std::string& name) {
    return std::any_of(snapshot.caches.begin(), snapshot.caches.end(),
                       [&](const CacheSnapshot& cache) { return cache.cache == name; });
  };
  std::string first;
  for (const auto& [name, cache] : model_.caches) {
    if (name == attached) continue;
    if (!there(name)) missing.push_back(name);
    if (!model_.MayEnd(cache)) continue;
    if (first.empty() || cache.expires < model_.caches[first].expires) first = name;
  }
  const size_t wanted = model_.caches.size() > kCachesMax ? 1 : 0;
  if (exact && (missing.size() != wanted || (wanted == 1 && missing[0] != first))) {
    Fail(absl::StrCat("caches that gave way: ", absl::StrJoin(missing, " "), ", not ", first));
  }
  for (const std::string& name : missing) {
    if (!model_.MayEnd(model_.caches[name])) Fail(absl::StrCat("cache ", name, " ended"));
    model_.End(name);
  }
}

void Simulation::Attach(const Step& step) {
  const int session = PickSession(step.a);
  if (session < 0) return;
  const std::string cache = step.b % 16 == 1 ? "third" : step.b % 4 == 0 ? "other" : "kv";
  const bool wrong = step.b >= 240;
  const bool was_there = model_.caches.count(cache) > 0;
  // A cache of another layout would be one; the simulation has no use for it.
  if (wrong && !was_there) return;
  const bool attached = model_.Attached(session, cache) != nullptr;
  const bool limbo = model_.memory_in_limbo;
  AttachOptions options;
  // What leaves keeps what was to be kept then.
  if (!limbo && step.c % 4 == 1) {
    options.retain =
        Retention{.blocks_max = step.c / 4 % 8, .duration = absl::Seconds(step.c / 4 % 3 * 30)};
  }
  const Forecast forecast = ForecastAttach(session, cache, wrong);
  const absl::Time begin = machine_.Now();
  attaching_ = true;
  BeginCall(step, session);
  const auto result =
      node_->AttachCache(sessions_[session].id, cache, LayoutOf(cache, wrong), "", Soon(), options);
  const bool exact = !limbo && result.ok();
  if (!result.ok()) model_.memory_in_limbo = true;
  const bool done = EndCall(result.status(), forecast, "attach");
  if (done && !attached) {
    if (model_.Attach(session, cache) != result->created) Fail("attach: created or joined");
    ModelCache& joined = model_.caches[cache];
    if (options.retain.has_value()) joined.SetRetention(*options.retain);
    if (!limbo && joined.kept_known && result->blocks_kept != joined.kept()) {
      Fail(absl::StrCat("attach: ", result->blocks_kept, " kept blocks, not ", joined.kept()));
    }
    Place& place = sessions_[session].places[cache];
    place = {std::make_shared<WorkerMemory>(node_.get(), kPeer, *result), 0, *result};
  }
  if (!was_there) CheckDropped(cache, exact && done);
  if (was_there && !done) NoteExpiry(cache, begin);
}

// Who was about to join a cache without sessions has left it again.
void Simulation::NoteExpiry(const std::string& name, absl::Time begin) {
  const auto found = model_.caches.find(name);
  const auto snapshot = node_->Snapshot(name);
  if (found == model_.caches.end() || !found->second.sessions.empty()) return;
  ModelCache& cache = found->second;
  const auto expiry = [&](absl::Time left) {
    return std::max(cache.reattach_until, left + cache.retention.duration);
  };
  if (!snapshot.ok()) {
    const absl::Time now = machine_.Now();
    if (!model_.MayEnd(cache) || expiry(begin) > now) Fail(absl::StrCat(name, " ended too early"));
    return model_.End(name);
  }
  const auto real = snapshot->caches.front().expires_time;
  if (!real.has_value() ||
      (*real != cache.expires && (*real < expiry(begin) || *real > expiry(machine_.Now())))) {
    return Fail(absl::StrCat(name, ": when it ends after nobody joined"));
  }
  cache.expires = *real;
}

void Simulation::Detach(const Step& step) {
  int session = 0;
  std::string cache;
  PickAttachment(step, &session, &cache);
  if (session < 0) return;
  const bool there = sessions_[session].alive && model_.Attached(session, cache) != nullptr;
  const absl::Time now = machine_.Now();
  BeginCall(step, session);
  const auto ended = node_->DetachCache(sessions_[session].id, cache, Soon());
  // It has left before it waits, and loses nothing more.
  if (ended.ok() && there && model_.Leave(session, cache, now) != *ended) {
    Fail("detach: whether the cache ends with it");
  }
  EndCall(ended.status(), there ? Forecast::kOk : Forecast::kRefused, "detach");
}

}  // namespace kvtier::simulation
