#include "server/session/cache_memory.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "server/core/limits.h"
#include "server/core/memory_headroom.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// What the daemon itself keeps of a block beside the pool, generously: its records, its holders,
// its place in a holder's set and in a block table. With small blocks this is as much as their
// rows, and a failed allocation ends the process.
constexpr int64_t kBookkeepingBytesPerBlock = 32;
// Less is not worth reading the limits of the machine and its container.
constexpr int64_t kHeadroomCheckBytesMin = int64_t{1} << 20;

absl::Status CheckBookkeeping(const CacheLayout& layout, const HostPool& pool) {
  const int64_t bytes = layout.block_count * kBookkeepingBytesPerBlock;
  if (bytes < kHeadroomCheckBytesMin) return absl::OkStatus();
  return CheckMemoryHeadroom(ReadMemoryHeadroom(pool.system_root()),
                             "what the daemon keeps of each block of a cache", bytes);
}

int64_t WholePieces(int64_t bytes) {
  return (bytes + kPoolAlignmentBytes - 1) / kPoolAlignmentBytes * kPoolAlignmentBytes;
}

// What a part of the pool's rows holds behind the rows of the cache.
int64_t BackedBytesInPart(const CacheLayout& layout) {
  return WholePieces(TrackingGeometryOf(layout).backed_bytes);
}

}  // namespace

int64_t CacheMemory::PoolBytesOf(const CacheLayout& layout, const HostPool& pool) {
  const int64_t rows = HostGeometryOf(layout).size_bytes;
  return WholePieces(pool.folder() == nullptr ? rows : rows + BackedBytesInPart(layout));
}

absl::StatusOr<CacheMemory> CacheMemory::Create(absl::string_view name, const CacheAccess& access,
                                                const CacheLayout& layout, HostPool* pool,
                                                DeviceBackend* backend,
                                                const std::function<absl::Status()>& may_go_on) {
  CacheMemory memory;
  memory.pool_ = pool;
  memory.layout_ = layout;
  KVTIER_RETURN_IF_ERROR(pool->CheckReady());
  KVTIER_RETURN_IF_ERROR(CheckBookkeeping(layout, *pool));
  KVTIER_ASSIGN_OR_RETURN(memory.part_, pool->Carve(PoolBytesOf(layout, *pool), may_go_on));
  const absl::Status made = [&]() -> absl::Status {
    if (pool->folder() != nullptr) {
      KVTIER_ASSIGN_OR_RETURN(memory.file_, pool->folder()->NewCacheFile(
                                                {.cache = std::string(name),
                                                 .access = access,
                                                 .layout = layout,
                                                 .part_offset_bytes = memory.part_.offset_bytes(),
                                                 .part_bytes = memory.part_.size_bytes()}));
    } else {
      KVTIER_RETURN_IF_ERROR(memory.MakeTracking());
    }
    return memory.Register(backend);
  }();
  if (made.ok()) return memory;
  memory.Release(/*keep_file=*/false, /*untouched=*/true);
  return made;
}

absl::Status CacheMemory::MakeTracking() {
  const TrackingGeometry tracking = TrackingGeometryOf(layout_);
  KVTIER_ASSIGN_OR_RETURN(block_generation_,
                          SharedMemory::Create("kvtier:block_generation",
                                               tracking.block_generation.offset_bytes +
                                                   tracking.block_generation.size_bytes,
                                               /*read_only_for_others=*/true));
  KVTIER_ASSIGN_OR_RETURN(backed_generation_,
                          SharedMemory::Create("kvtier:backed_generation", tracking.backed_bytes));
  held_.resize(layout_.block_count);
  tags_.resize(layout_.block_count);
  return absl::OkStatus();
}

absl::StatusOr<CacheMemory> CacheMemory::Adopt(CacheFile file, HostPool* pool,
                                               DeviceBackend* backend) {
  CacheMemory memory;
  memory.pool_ = pool;
  memory.layout_ = file.manifest().layout;
  memory.file_ = std::move(file);
  const absl::Status adopted = [&]() -> absl::Status {
    const CacheManifest& manifest = memory.file_.manifest();
    const int64_t bytes = HostGeometryOf(memory.layout_).size_bytes;
    if (manifest.part_bytes != bytes + BackedBytesInPart(memory.layout_)) {
      return absl::DataLossError("its part of the pool has another size than its layout");
    }
    KVTIER_ASSIGN_OR_RETURN(memory.part_,
                            pool->Adopt(manifest.part_offset_bytes, manifest.part_bytes));
    return memory.Register(backend);
  }();
  if (adopted.ok()) return memory;
  // A device that does not take its memory now says nothing against what is in it.
  memory.Release(/*keep_file=*/!absl::IsDataLoss(adopted));
  return adopted;
}

// The pool registers its rows itself.
absl::Status CacheMemory::Register(DeviceBackend* backend) {
  const auto add = [&](uint8_t* data, int64_t bytes) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<HostRegistration> registration,
                            backend->RegisterHost(data, bytes));
    registrations_.push_back(std::move(registration));
    return absl::OkStatus();
  };
  if (file_.valid()) {
    return add(reinterpret_cast<uint8_t*>(file_.records().generations), file_.generations_bytes());
  }
  KVTIER_RETURN_IF_ERROR(add(block_generation_->data(), block_generation_->size_bytes()));
  return add(backed_generation_->data(), backed_generation_->size_bytes());
}

HostView CacheMemory::host() const {
  if (file_.valid()) {
    return {.rows = part_.data(),
            .block_generation = file_.records().generations,
            .backed_generation = part_.data() + HostGeometryOf(layout_).size_bytes};
  }
  const TrackingGeometry tracking = TrackingGeometryOf(layout_);
  return {.rows = part_.data(),
          .block_generation = reinterpret_cast<int32_t*>(block_generation_->data() +
                                                         tracking.block_generation.offset_bytes),
          .backed_generation = backed_generation_->data()};
}

BlockRecords CacheMemory::records() {
  if (file_.valid()) return file_.records();
  return {.generations = host().block_generation, .held = held_.data(), .tags = tags_.data()};
}

SharedRange CacheMemory::rows() const {
  const bool has_file = file_.valid();
  return {.fd = &pool_->fd(),
          .offset_bytes = part_.offset_bytes(),
          .size_bytes = has_file ? HostGeometryOf(layout_).size_bytes : part_.size_bytes(),
          .sealed = !has_file};
}

SharedRange CacheMemory::block_generation() const {
  if (!file_.valid())
    return {.fd = &block_generation_->fd(), .size_bytes = block_generation_->size_bytes()};
  return {.fd = &file_.read_only_fd(),
          .offset_bytes = file_.generations_offset_bytes(),
          .size_bytes = file_.generations_bytes(),
          .sealed = false};
}

SharedRange CacheMemory::backed_generation() const {
  if (!file_.valid())
    return {.fd = &backed_generation_->fd(), .size_bytes = backed_generation_->size_bytes()};
  const int64_t row_bytes = HostGeometryOf(layout_).size_bytes;
  return {.fd = &pool_->fd(),
          .offset_bytes = part_.offset_bytes() + row_bytes,
          .size_bytes = part_.size_bytes() - row_bytes,
          .sealed = false};
}

int32_t CacheMemory::RowsBacked(int32_t block, int32_t generation) const {
  const TrackingGeometry tracking = TrackingGeometryOf(layout_);
  auto* const backed = static_cast<uint8_t*>(host().backed_generation);
  int32_t rows = 0;
  for (int32_t i = 0; i < layout_.block_size; ++i) {
    const int64_t slot = int64_t{block} * layout_.block_size + i;
    rows += std::all_of(
        tracking.backed_generation.begin(), tracking.backed_generation.end(),
        [&](const ArrayExtent& group) {
          auto* const row = reinterpret_cast<int32_t*>(backed + group.offset_bytes) + slot;
          return std::atomic_ref<int32_t>(*row).load(std::memory_order_acquire) == generation;
        });
  }
  return rows;
}

void CacheMemory::Release(bool keep_file, bool untouched) {
  registrations_.clear();
  block_generation_.reset();
  backed_generation_.reset();
  // Before its rows are anybody else's.
  if (file_.valid() && !keep_file) file_.Remove();
  file_ = CacheFile();
  if (untouched) part_.GiveBackUntouched();
  part_ = PoolPart();
}

}  // namespace kvtier
