#include "tests/simulation/model.h"

#include <algorithm>
#include <utility>

namespace kvtier::simulation {

int32_t ModelCache::used() const {
  return static_cast<int32_t>(std::count_if(
      blocks.begin(), blocks.end(), [](const ModelBlock& b) { return !b.holders.empty(); }));
}

int32_t ModelCache::kept() const {
  return static_cast<int32_t>(
      std::count_if(blocks.begin(), blocks.end(), [](const ModelBlock& b) { return b.kept; }));
}

bool ModelCache::kept_is_certain() const {
  const auto coming = std::count_if(blocks.begin(), blocks.end(),
                                    [](const ModelBlock& b) { return b.limbo_keeps; });
  return kept_known && (coming == 0 || kept() + coming <= kept_max);
}

int32_t ModelCache::free_at_most() const {
  return kBlockCount - used() - reserved() - (guarded && kept_known ? kept() : 0);
}

int32_t ModelCache::free_surely() const {
  const auto limbo = std::count_if(blocks.begin(), blocks.end(), [](const ModelBlock& b) {
    return b.holders.empty() && b.limbo;
  });
  const int32_t perhaps_kept = guarded && !kept_known ? kept() : 0;
  return free_at_most() - static_cast<int32_t>(limbo) - reserved_limbo - perhaps_kept;
}

int32_t ModelCache::reserved() const {
  int32_t sum = 0;
  for (const auto& [session, requests] : sessions) {
    for (const auto& [id, request] : requests) sum += request.reserve_left;
  }
  return sum;
}

ModelRequest* ModelCache::Find(int session, const std::string& id) {
  const auto requests = sessions.find(session);
  if (requests == sessions.end()) return nullptr;
  const auto found = requests->second.find(id);
  return found == requests->second.end() ? nullptr : &found->second;
}

void ModelCache::Drop(const ModelRequest& request, bool limbo, bool keep) {
  for (ModelBlock& block : blocks) {
    if (block.holders.count(request.key) == 0) continue;
    if (!limbo) {
      DropBlock(&block, request.key);
      continue;
    }
    block.holders.erase(request.key);
    block.limbo = true;
    block.limbo_keeps |= keep;
  }
}

void ModelCache::DropBlock(ModelBlock* block, int64_t request_key) {
  block->holders.erase(request_key);
  if (!block->holders.empty()) return;
  block->quarantined = true;
  block->contested |= block->limbo_keeps;
}

void ModelCache::Undo(int32_t drawn) {
  undone = true;
  reserved_limbo += drawn;
  if (kept() == 0) return;
  kept_known = false;
  // What had been taken up is kept once the device has passed.
  for (ModelBlock& block : blocks) block.limbo |= block.kept;
}

void ModelCache::MakeFree(int32_t count) {
  if (guarded || kept() == 0) {
    // What is about to be kept may be given out as soon as it is.
    const bool coming = std::any_of(blocks.begin(), blocks.end(),
                                    [](const ModelBlock& b) { return b.limbo && b.limbo_keeps; });
    if (coming && !guarded) kept_known = false;
    return;
  }
  const auto certain = std::count_if(blocks.begin(), blocks.end(), [](const ModelBlock& b) {
    return b.holders.empty() && !b.kept && !b.limbo && !b.quarantined;
  });
  const bool moving = undone || reserved_limbo > 0 ||
                      std::any_of(blocks.begin(), blocks.end(), [](const ModelBlock& b) {
                        return b.holders.empty() && (b.limbo || b.quarantined);
                      });
  if (!moving) return FreeOldest(count - static_cast<int32_t>(certain));
  if (undone || count + reserved_limbo > certain) kept_known = false;
}

void ModelCache::FreeOldest(int32_t count) {
  if (!kept_known) return;
  std::map<int64_t, std::vector<ModelBlock*>> by_age;
  for (ModelBlock& block : blocks) {
    if (block.kept) by_age[block.kept_age].push_back(&block);
  }
  for (const auto& [age, same] : by_age) {
    if (count <= 0) return;
    if (static_cast<int32_t>(same.size()) > count) {
      kept_known = false;
      return;
    }
    for (ModelBlock* const block : same) block->kept = false;
    count -= static_cast<int32_t>(same.size());
  }
}

void ModelCache::SetRetention(const Retention& value) {
  retention = value;
  kept_max = value.duration > absl::ZeroDuration() ? value.blocks_max : 0;
  if (!guarded) FreeOldest(kept() - kept_max);
}

void ModelCache::EndGuard() {
  guarded = false;
  // The next block that is freed brings the others to their limit.
  if (kept() > kept_max) kept_known = false;
}

void ModelCache::Settle(int64_t age) {
  reserved_limbo = 0;
  undone = false;
  for (ModelBlock& block : blocks) {
    if (block.holders.empty() && block.limbo && block.limbo_keeps) {
      block.kept = true;
      block.kept_age = age;
      kept_known &= !block.contested;
    }
    block.limbo = block.limbo_keeps = block.contested = block.quarantined = false;
  }
  if (!guarded) FreeOldest(kept() - kept_max);
}

ModelCache* Model::Attached(int session, const std::string& cache) {
  const auto found = caches.find(cache);
  if (found == caches.end() || found->second.sessions.count(session) == 0) return nullptr;
  return &found->second;
}

bool Model::Attach(int session, const std::string& cache) {
  const bool created = caches.count(cache) == 0;
  ModelCache& joined = caches[cache];
  if (created) joined.key = NewKey();
  joined.sessions[session];
  return created;
}

bool Model::Leave(int session, const std::string& cache, absl::Time now) {
  ModelCache& left = caches[cache];
  const bool keep = left.retention.duration > absl::ZeroDuration();
  for (const auto& [id, request] : left.sessions[session]) {
    left.Drop(request, true, keep);
    left.reserved_limbo += request.reserve_left;
  }
  left.sessions.erase(session);
  memory_in_limbo = true;
  if (!left.sessions.empty()) return false;
  left.expires = std::max(left.reattach_until, now + left.retention.duration);
  if (left.expires > now || !MayEnd(left)) return false;
  End(cache);
  return true;
}

void Model::Close(int session, absl::Time now) {
  std::vector<std::string> names;
  for (const auto& [name, cache] : caches) {
    if (cache.sessions.count(session) > 0) names.push_back(name);
  }
  for (const std::string& name : names) Leave(session, name, now);
}

bool Model::MayEnd(const ModelCache& cache) const {
  return cache.sessions.empty() && !(cache.adopted && earlier_workers);
}

void Model::End(const std::string& cache) {
  const auto found = caches.find(cache);
  found->second.kept_known = false;
  ending.emplace(cache, std::move(found->second));
  caches.erase(found);
  memory_in_limbo = true;
}

void Model::Settle() {
  memory_in_limbo = false;
  ending.clear();
  const int64_t age = NewKey();
  for (auto& [name, cache] : caches) cache.Settle(age);
}

}  // namespace kvtier::simulation
