// Daemons that follow each other: how one ends, is killed, and how the next begins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/device/cpu/cpu_backend.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {
namespace {

// Room for two caches; in a folder each takes a piece for what is backed as well.
constexpr int64_t kPoolBytes = kCachesMax * kPoolAlignmentBytes;
constexpr int kKillDelayMax = 64;

// Without a folder: for all programs of the process that go well.
std::unique_ptr<HostPool>& MemoryPool() {
  static std::unique_ptr<HostPool> pool;
  return pool;
}

std::unique_ptr<HostPool> MakePool(const std::string& folder, DeviceBackend* backend) {
  const int64_t bytes = folder.empty() ? kPoolBytes : 2 * kPoolBytes;
  auto pool = HostPool::Create({.size_bytes = bytes,
                                .huge_pages = HugePages::kNever,
                                .touch_threads = 1,
                                .chunk_bytes = bytes,
                                .folder = folder,
                                .drop_mismatch = true,
                                .system_root = Disk().system_root()},
                               backend);
  (*pool)->Start([](int64_t, int64_t) {});
  (*pool)->WaitReady(absl::InfiniteFuture()).IgnoreError();
  return *std::move(pool);
}

}  // namespace

const PoolDisk& Disk() {
  static const PoolDisk disk;
  return disk;
}

Simulation::~Simulation() {
  machine_.SetNode(nullptr);
  node_.reset();
  folder_pool_.reset();
  if (failure_.ok()) return;
  MemoryPool().reset();
  Disk().RemoveAll();
}

void Simulation::Start() {
  if (has_folder_ && run_ == 1) {
    Disk().StartMachine(1);
    Disk().RemoveCaches();
  }
  if (!has_folder_) {
    if (MemoryPool() == nullptr) {
      static DeviceBackend* const backend = MakeCpuBackend({})->release();
      MemoryPool() = MakePool("", backend);
    }
    pool_ = MemoryPool().get();
  } else {
    folder_pool_ = MakePool(Disk().path(), &machine_.backend());
    pool_ = folder_pool_.get();
  }
  node_ = std::make_unique<Node>(
      NodeOptions{
          .version = "simulation", .reattach_duration = kReattachDuration, .reaper_threads = 0},
      &machine_, &machine_.backend(), pool_);
  machine_.SetNode(node_.get());
}

// As a daemon that ends: whatever is in flight is done, and nothing is left.
void Simulation::StopNode() {
  if (node_ == nullptr) return;
  machine_.plan().Clear();
  machine_.SetWeather(Weather::kPrompt, 1);
  node_->CloseAllSessions("the node ends", absl::InfiniteFuture()).IgnoreError();
  machine_.Settle();
  if (in_flight_ != 0) Fail(absl::StrCat(in_flight_, " operations never ended"));
  if (node_->DeviceBytesUsed(kCpuDeviceUuid) != 0) Fail("device memory was left");
  if (pool_->stats().used_bytes != 0) Fail("memory of the pool was left");
}

void Simulation::Restart(const Step& step) {
  before_ = model_;
  StopNode();
  // Killed while it stopped: that decides.
  if (image_ != nullptr) return;
  ++run_;
  Follow(nullptr, {.verb = step.verb, .a = step.a, .b = step.b});
}

void Simulation::Kill(const Step& step) {
  kill_ = step;
  const int64_t moves = step.a % kKillDelayMax;
  if (moves == 0) {
    before_ = model_;
    image_ = std::make_unique<PoolImage>(Disk().Read());
    return;
  }
  kill_planned_ = true;
  machine_.Interrupt(moves, [this] { image_ = std::make_unique<PoolImage>(Disk().Read()); });
}

void Simulation::Follow(const PoolImage* image, const Step& step) {
  machine_.SetNode(nullptr);
  node_.reset();
  folder_pool_.reset();
  std::string damaged;
  if (image != nullptr) {
    kill_planned_ = false;
    machine_.Interrupt(0, nullptr);
    PoolImage left = *image;
    damaged = Damage(&left, step);
    Disk().PutBack(left);
  }
  const bool workers_live = has_folder_ && (step.b & 2) != 0;
  for (Session& session : sessions_) {
    session.alive = false;
    if (!workers_live) session.places.clear();
  }
  const bool mapped = std::any_of(sessions_.begin(), sessions_.end(),
                                  [](const Session& s) { return !s.places.empty(); });
  // Whose worker may write the rows of a lost cache is not known: all is dropped.
  if (mapped && !damaged.empty()) damaged = kAllCaches;
  const Model after = model_;
  model_.caches.clear();
  model_.draining = false;
  model_.Settle();
  model_.earlier_workers = mapped && damaged != kAllCaches;
  Start();
  if (has_folder_ && failure_.ok()) Adopt(after, damaged);
  // They map files that are nobody's any more.
  if (damaged == kAllCaches) {
    for (Session& session : sessions_) session.places.clear();
  }
}

// Workers of earlier daemons may end first.
void Simulation::Expire(const Step& step) {
  for (Session& session : sessions_) {
    if (step.a % 2 == 1 && session.run < run_) session.places.clear();
  }
  const bool mapped = std::any_of(sessions_.begin(), sessions_.end(), [&](const Session& session) {
    return session.run < run_ && !session.places.empty();
  });
  if (model_.earlier_workers && !mapped) {
    model_.earlier_workers = false;
    for (auto& [name, cache] : model_.caches) cache.EndGuard();
  }
  std::vector<std::string> expected;
  for (const auto& [name, cache] : model_.caches) {
    if (model_.MayEnd(cache) && cache.expires <= machine_.Now()) expected.push_back(name);
  }
  const std::vector<std::string> ended = node_->EndExpiredCaches();
  if (ended != expected) {
    Fail(absl::StrCat("ended caches: ", absl::StrJoin(ended, " "),
                      ", and must be: ", absl::StrJoin(expected, " ")));
  }
  for (const std::string& name : expected) model_.End(name);
  if (node_->earlier_workers() != model_.earlier_workers) Fail("are there earlier workers?");
}

}  // namespace kvtier::simulation
