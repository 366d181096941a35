#include "tests/simulation/model.h"

#include <algorithm>

namespace kvtier::simulation {

int32_t ModelCache::used() const {
  return static_cast<int32_t>(std::count_if(
      blocks.begin(), blocks.end(), [](const ModelBlock& b) { return !b.holders.empty(); }));
}

int32_t ModelCache::free_at_most() const { return kBlockCount - used() - reserved(); }

int32_t ModelCache::free_surely() const {
  const auto limbo = std::count_if(blocks.begin(), blocks.end(), [](const ModelBlock& b) {
    return b.holders.empty() && b.limbo;
  });
  return free_at_most() - static_cast<int32_t>(limbo) - reserved_limbo;
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

void ModelCache::Drop(const ModelRequest& request, bool limbo) {
  for (ModelBlock& block : blocks) {
    if (block.holders.erase(request.key) > 0) block.limbo |= limbo;
  }
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

void Model::Leave(int session, const std::string& cache) {
  ModelCache& left = caches[cache];
  for (const auto& [id, request] : left.sessions[session]) {
    left.Drop(request, true);
    left.reserved_limbo += request.reserve_left;
  }
  left.sessions.erase(session);
  if (left.sessions.empty()) caches.erase(cache);
  memory_in_limbo = true;
}

void Model::Close(int session) {
  std::vector<std::string> names;
  for (const auto& [name, cache] : caches) {
    if (cache.sessions.count(session) > 0) names.push_back(name);
  }
  for (const std::string& name : names) Leave(session, name);
}

void Model::Settle() {
  memory_in_limbo = false;
  for (auto& [name, cache] : caches) {
    cache.reserved_limbo = 0;
    for (ModelBlock& block : cache.blocks) block.limbo = false;
  }
}

}  // namespace kvtier::simulation
