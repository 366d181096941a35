// What a daemon finds of the one before it, and what it must find.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {
namespace {

enum class Held { kNo, kYes, kPerhaps };

Held HeldIn(const ModelBlock* block) {
  if (block == nullptr) return Held::kPerhaps;
  if (!block->holders.empty() || block->kept) return Held::kYes;
  return block->limbo ? Held::kPerhaps : Held::kNo;
}

// Of a row that was in these states before and after the verb in which the daemon ended.
absl::Status JudgeRow(const ModelRow& before, const ModelRow& after, bool backed,
                      const std::function<bool(uint8_t)>& has_salt, ModelRow* is) {
  const uint8_t salt = after.state != ModelRow::kFresh ? after.salt : before.salt;
  if (before.state == ModelRow::kBacked && after.state == ModelRow::kBacked && !backed) {
    return absl::InternalError("a completed backup is lost");
  }
  if (before.state == ModelRow::kFresh && after.state == ModelRow::kFresh && backed) {
    return absl::InternalError("a row that nobody wrote counts as backed up");
  }
  if (backed && !has_salt(salt)) return absl::InternalError("wrong bytes of a row that is kept");
  *is = {.state = backed ? ModelRow::kBacked : ModelRow::kFresh, .salt = salt};
  return absl::OkStatus();
}

}  // namespace

int32_t Simulation::Found::Backed(int32_t slot) const {
  return reinterpret_cast<const int32_t*>(memory->segment(SegmentKind::kBackedGeneration))[slot];
}

bool Simulation::Found::HostRowIs(int32_t slot, uint8_t salt) const {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const uint8_t* const bytes = memory->HostRow(0, layer, slot);
    for (int32_t j = 0; j < kRowBytes; ++j) {
      if (bytes[j] != static_cast<uint8_t>(PatternByte(slot, layer, j) + salt)) return false;
    }
  }
  return true;
}

// A byte of a manifest that is not what it was, a file that was never finished, or a machine that
// was started anew.
std::string Simulation::Damage(PoolImage* image, const Step& step) const {
  const int kind = step.c >> 5;
  if (kind < 3) return "";
  if (kind == 3) {
    if (step.c % 32 != 0) return "";
    Disk().StartMachine(run_);
    return kAllCaches;
  }
  const size_t at = static_cast<size_t>(step.c % 32) * 37 + step.a;
  const auto flip = [](std::string* bytes, size_t byte) {
    (*bytes)[byte] = static_cast<char>((*bytes)[byte] ^ 0x40);
  };
  std::map<std::string, std::string> files;  // by cache
  for (const auto& [name, bytes] : *image) {
    const ManifestOf manifest = FindManifest(bytes);
    if (absl::StartsWith(name, "cache-") && manifest.length > 0) files[manifest.cache] = name;
  }
  if (kind == 4 && image->count("pool") > 0) {
    flip(&image->at("pool"), at % (32 + 8));
    return kAllCaches;
  }
  if (files.empty()) return "";
  auto chosen = files.begin();
  std::advance(chosen, step.b % files.size());
  std::string& bytes = image->at(chosen->second);
  if (kind == 5) {  // torn while it was made
    (*image)["cache-torn.new"] = bytes.substr(0, at) + std::string(bytes.size() - at, '\0');
    return "";
  }
  const auto length = static_cast<size_t>(FindManifest(bytes).length);
  const std::string whole = bytes.substr(0, length);
  if (kind == 7) {
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(at % length), bytes.end(), '\0');
  }
  if (bytes.compare(0, length, whole) == 0) flip(&bytes, at % length);
  return chosen->first;
}

Simulation::Found Simulation::Find(const std::string& name) {
  Found found;
  const auto session = node_->OpenSession("auditor", kPeer, nullptr);
  const auto attached = node_->AttachCache(*session, name, LayoutOf(name), "", Soon());
  if (!attached.ok()) {
    Fail(absl::StrCat(name, " cannot be attached: ", attached.status().ToString()));
    return found;
  }
  found.memory = std::make_shared<WorkerMemory>(node_.get(), kPeer, *attached);
  const auto listed = node_->ListKeptBlocks(*session, name, 0, kBlockCount);
  for (const KeptBlockInfo& info : *listed) found.kept[info.block_id] = info;
  if (attached->created || attached->blocks_kept != static_cast<int32_t>(listed->size())) {
    Fail(absl::StrCat(name, ": what attaching says of kept blocks"));
  }
  found.retention = node_->Snapshot(name)->caches.front().retention;
  found.left = machine_.Now();
  node_->CloseSession(*session);
  machine_.Settle();
  return found;
}

absl::Status Simulation::JudgeBlock(const Found& found, int32_t id, const ModelBlock* before,
                                    const ModelBlock* after, ModelBlock* is) const {
  const auto kept = found.kept.find(id);
  const bool is_kept = kept != found.kept.end();
  is->generation = found.memory->BlockGeneration(id);
  const Held was = HeldIn(before), is_held = HeldIn(after);
  const bool same =
      before != nullptr && after != nullptr && before->generation == after->generation;
  // An assignment that was on its way had taken blocks that it may have given back.
  if (was == Held::kYes && is_held == Held::kYes && same &&
      (!is_kept || is->generation != before->generation)) {
    return absl::InternalError("a block that was held is not kept");
  }
  if (was == Held::kNo && is_held == Held::kNo && is_kept && !assigning_) {
    return absl::InternalError("a block is kept that nobody held");
  }
  const ModelBlock* const oldest = before != nullptr ? before : after;
  if (is->generation < oldest->generation) return absl::InternalError("a generation went back");
  if (!is_kept) return absl::OkStatus();
  is->kept = true;
  const ModelBlock unknown;
  const auto at_generation = [&](const ModelBlock* block) {
    return block != nullptr && block->generation == is->generation ? block : nullptr;
  };
  const ModelBlock* first = at_generation(before);
  const ModelBlock* last = at_generation(after);
  if (first == nullptr) first = last != nullptr ? last : &unknown;
  if (last == nullptr) last = first;
  int32_t rows_backed = 0;
  for (int32_t row = 0; row < kBlockSize; ++row) {
    const int32_t slot = id * kBlockSize + row;
    const bool backed = found.Backed(slot) == is->generation;
    rows_backed += backed;
    const absl::Status fine = JudgeRow(
        first->rows[row], last->rows[row], backed,
        [&](uint8_t salt) { return found.HostRowIs(slot, salt); }, &is->rows[row]);
    if (!fine.ok()) return fine;
  }
  if (kept->second.generation != is->generation || kept->second.rows_backed != rows_backed) {
    return absl::InternalError("what is listed of a kept block");
  }
  return absl::OkStatus();
}

absl::Status Simulation::Judge(const Found& found, const ModelCache* before,
                               const ModelCache* after, ModelCache* cache) {
  const ModelCache* const known = after != nullptr ? after : before;
  *cache = {};
  cache->key = known->key;
  cache->adopted = true;
  cache->guarded = model_.earlier_workers;
  cache->retention = found.retention;
  const auto same_retention = [&](const ModelCache* is) {
    return is != nullptr && is->retention.duration == found.retention.duration &&
           is->retention.blocks_max == found.retention.blocks_max;
  };
  if (!same_retention(before) && !same_retention(after)) {
    return absl::InternalError("how long it is retained");
  }
  for (int32_t id = 0; id < kBlockCount; ++id) {
    // What is not known of kept blocks counts as limbo.
    const auto block_of = [id](const ModelCache* from, ModelBlock* copy) -> const ModelBlock* {
      if (from == nullptr) return nullptr;
      *copy = from->blocks[id];
      copy->limbo |= copy->kept && !from->kept_is_certain();
      copy->kept &= from->kept_is_certain();
      return copy;
    };
    ModelBlock first, last;
    const absl::Status fine =
        JudgeBlock(found, id, block_of(before, &first), block_of(after, &last), &cache->blocks[id]);
    if (!fine.ok()) return absl::InternalError(absl::StrCat("block ", id, ": ", fine.message()));
    cache->blocks[id].kept_age = model_.NewKey();
  }
  return absl::OkStatus();
}

void Simulation::AdoptOne(const std::string& name, const Model& after) {
  const absl::Time adopted = machine_.Now();
  const Found found = Find(name);
  if (found.memory == nullptr) return;
  // By key: a cache that had ended may have been there, beside one of the same name.
  std::map<int64_t, std::pair<const ModelCache*, const ModelCache*>> known;
  const auto note = [&](const ModelCache& cache, bool later) {
    (later ? known[cache.key].second : known[cache.key].first) = &cache;
  };
  const auto note_all = [&](const Model& model, bool later) {
    const auto [begin, end] = model.ending.equal_range(name);
    for (auto it = begin; it != end; ++it) note(it->second, later);
    if (const auto it = model.caches.find(name); it != model.caches.end()) note(it->second, later);
  };
  note_all(before_, false);
  note_all(after, true);
  const auto was = std::as_const(before_).caches.find(name);
  const auto is = after.caches.find(name);
  const bool lives = was != std::as_const(before_).caches.end() && is != after.caches.end() &&
                     was->second.key == is->second.key;
  // One that was on its way, and came to nothing.
  const ModelCache fresh;
  if (!lives && attaching_) known[model_.NewKey()] = {&fresh, &fresh};
  absl::Status wrong = absl::InternalError("nobody made it");
  for (const auto& [key, states] : known) {
    if (lives && key != is->second.key) continue;
    ModelCache cache;
    wrong = Judge(found, states.first, states.second, &cache);
    if (!wrong.ok()) continue;
    cache.reattach_until = adopted + kReattachDuration;
    cache.expires = std::max(cache.reattach_until, found.left + cache.retention.duration);
    model_.caches[name] = cache;
    return;
  }
  Fail(absl::StrCat("after a restart, cache ", name, ": ", wrong.message()));
}

void Simulation::Adopt(const Model& after, const std::string& damaged) {
  const auto dropped = node_->AdoptCaches();
  if (!dropped.ok()) return Fail(absl::StrCat("not adopted: ", dropped.status().ToString()));
  if (!dropped->empty()) Fail(absl::StrCat("not adopted: ", absl::StrJoin(*dropped, "; ")));
  if (node_->earlier_workers() != model_.earlier_workers) Fail("are there earlier workers?");
  for (const std::string& why : pool_->folder()->dropped()) {
    if (damaged.empty() && !absl::StrContains(why, "not finished")) Fail(why);
  }
  std::vector<std::string> names;
  const NodeSnapshot snapshot = *node_->Snapshot("");
  for (const CacheSnapshot& cache : snapshot.caches) names.push_back(cache.cache);
  if (damaged == kAllCaches && !names.empty()) {
    Fail(absl::StrCat("a cache of a damaged pool is there: ", absl::StrJoin(names, " "),
                      "; dropped: ", absl::StrJoin(pool_->folder()->dropped(), "; ")));
  }
  for (const auto& [name, cache] : before_.caches) {
    const auto is = after.caches.find(name);
    const bool lives = is != after.caches.end() && is->second.key == cache.key;
    const bool there = std::find(names.begin(), names.end(), name) != names.end();
    if (lives && !there && damaged != kAllCaches && damaged != name) {
      Fail(absl::StrCat("cache ", name, " is lost"));
    }
    if (lives && there && damaged == name) Fail(absl::StrCat("damaged, and there: ", name));
  }
  for (const std::string& name : names) AdoptOne(name, after);
}

}  // namespace kvtier::simulation
