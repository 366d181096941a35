#include "server/host_pool/host_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/error.h"
#include "server/core/memory_headroom.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// One step of a touching or wiping thread: between two, it sees a Cancel.
constexpr int64_t kStepBytes = int64_t{64} << 20;
constexpr int32_t kTouchThreadsMax = 64;
// When it pays to ask again for room that another cache has.
constexpr absl::Duration kFullPoolRetryDelay = absl::Seconds(1);
// 1 PiB: beyond any machine, and far from where sizes could overflow.
constexpr int64_t kPoolBytesMax = int64_t{1} << 50;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kPoolAlignmentBytes - 1) / kPoolAlignmentBytes * kPoolAlignmentBytes;
}

MemoryHeadroom ReadHeadroom(const HostPoolOptions& options) {
  return options.huge_pages == HugePages::kRequire
             ? ReadHugePageHeadroom(options.system_root)
             : ReadMemoryHeadroom(options.system_root, options.numa_node);
}

}  // namespace

PoolPart::PoolPart(PoolPart&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      offset_bytes_(std::exchange(other.offset_bytes_, 0)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

PoolPart& PoolPart::operator=(PoolPart&& other) noexcept {
  if (this != &other) {
    GiveBack();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    offset_bytes_ = std::exchange(other.offset_bytes_, 0);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

PoolPart::~PoolPart() { GiveBack(); }

void PoolPart::GiveBack() {
  if (pool_ != nullptr) pool_->GiveBack(offset_bytes_, size_bytes_, /*untouched=*/false);
  pool_ = nullptr;
}

void PoolPart::GiveBackUntouched() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->GiveBack(offset_bytes_, size_bytes_, /*untouched=*/true);
}

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(const HostPoolOptions& options,
                                                           DeviceBackend* backend) {
  if (options.size_bytes <= 0 || options.size_bytes > kPoolBytesMax) {
    return FieldInvalid("pool_bytes", absl::StrCat(options.size_bytes),
                        absl::StrCat("1..", kPoolBytesMax));
  }
  if (options.chunk_bytes <= 0 || options.chunk_bytes % kPoolAlignmentBytes != 0) {
    return FieldInvalid("chunk_bytes", absl::StrCat(options.chunk_bytes), "a multiple of 2 MiB");
  }
  HostPoolOptions rounded = options;
  rounded.size_bytes = RoundUp(options.size_bytes);
  rounded.touch_threads = std::clamp(options.touch_threads, 1, kTouchThreadsMax);
  std::unique_ptr<PoolFolder> folder;
  if (!options.folder.empty()) {
    KVTIER_ASSIGN_OR_RETURN(folder, PoolFolder::Open({.path = options.folder,
                                                      .pool_bytes = rounded.size_bytes,
                                                      .drop_mismatch = options.drop_mismatch,
                                                      .system_root = options.system_root}));
    if (folder->has_huge_pages()) rounded.huge_pages = HugePages::kRequire;
  }
  const int64_t resident_bytes = folder == nullptr ? 0 : folder->resident_bytes();
  KVTIER_RETURN_IF_ERROR(CheckMemoryHeadroom(ReadHeadroom(rounded), "the host pool",
                                             rounded.size_bytes - resident_bytes));
  absl::StatusOr<PoolMemory> memory =
      folder == nullptr
          ? PoolMemory::Create(rounded.size_bytes, rounded.huge_pages, rounded.numa_node)
          : PoolMemory::OfFile(folder->TakeRows(), rounded.size_bytes, rounded.huge_pages,
                               rounded.numa_node);
  KVTIER_RETURN_IF_ERROR(memory.status());
  return std::unique_ptr<HostPool>(
      new HostPool(rounded, backend, *std::move(memory), std::move(folder)));
}

HostPool::HostPool(const HostPoolOptions& options, DeviceBackend* backend, PoolMemory memory,
                   std::unique_ptr<PoolFolder> folder)
    : options_(options),
      backend_(backend),
      folder_(std::move(folder)),
      memory_(std::move(memory)),
      space_(options.size_bytes) {
  // Caches of an earlier daemon had parts of it.
  if (folder_ != nullptr && !folder_->rows_are_new()) space_.MarkDirty(0, options.size_bytes);
}

HostPool::~HostPool() {
  Cancel();
  thread_.Join();
  UnpinAll();
}

void HostPool::Start(std::function<void(int64_t, int64_t)> progress) {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(started_, true)) return;
  }
  progress_ = std::move(progress);
  absl::StatusOr<Thread> thread = Thread::Start("kvtier-pin", [this] { Run(); });
  if (!thread.ok()) return Finish(thread.status());
  thread_ = *std::move(thread);
}

void HostPool::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  bool never_started = false;
  {
    MutexLock lock(&mutex_);
    never_started = !std::exchange(started_, true);
  }
  // Nobody else will tell those who wait.
  if (never_started) Run();
}

void HostPool::Run() {
  absl::Status status = PinAll();
  if (!status.ok()) {
    UnpinAll();
    memory_.DropPages();
    pinned_bytes_.store(0, std::memory_order_relaxed);
  } else if (options_.huge_pages != HugePages::kNever) {
    huge_bytes_.store(memory_.HugeBytes(), std::memory_order_relaxed);
  }
  Finish(std::move(status));
}

absl::Status HostPool::PinAll() {
  const int64_t total = options_.size_bytes;
  int64_t offset = 0;
  for (int64_t chunk = 0; offset < total; ++chunk) {
    const int64_t bytes = std::min(options_.chunk_bytes, total - offset);
    KVTIER_RETURN_IF_ERROR(PinChunk(chunk, offset, bytes));
    offset += bytes;
    pinned_bytes_.store(offset, std::memory_order_relaxed);
    if (progress_) progress_(offset, total);
  }
  return absl::OkStatus();
}

absl::Status HostPool::PinChunk(int64_t chunk, int64_t offset, int64_t bytes) {
  // Again for each chunk: somebody else may have taken the memory meanwhile, and a container
  // that goes beyond its limit is killed. Not of reserved pages: those were promised to the mapping
  // when it was made, so that the kernel counts them as taken.
  if (!cancelled_.load(std::memory_order_relaxed) && options_.huge_pages != HugePages::kRequire) {
    const int64_t missing_bytes =
        options_.size_bytes - (folder_ == nullptr ? 0 : folder_->resident_bytes());
    KVTIER_RETURN_IF_ERROR(CheckMemoryHeadroom(ReadHeadroom(options_),
                                               absl::StrCat("chunk ", chunk, " of the host pool"),
                                               std::min(bytes, missing_bytes)));
  }
  KVTIER_RETURN_IF_ERROR(TakePages(offset, bytes));
  absl::StatusOr<std::unique_ptr<HostRegistration>> registration =
      backend_->RegisterHost(memory_.data() + offset, bytes);
  if (!registration.ok()) {
    return MakeError(registration.status().code(), ErrorReasonOf(registration.status()),
                     absl::StrCat("host memory: registering chunk ", chunk, " of ", bytes,
                                  " bytes (pool: ", options_.size_bytes,
                                  " bytes) failed: ", registration.status().message()),
                     ErrorMetadataOf(registration.status()));
  }
  registrations_.push_back(*std::move(registration));
  return absl::OkStatus();
}

absl::Status HostPool::TakePages(int64_t offset, int64_t bytes) {
  Mutex mutex;  // rank: leaf
  absl::Status first;
  InParallel(offset, bytes, [&](int64_t part_offset, int64_t part_bytes) {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    const absl::Status status = memory_.TakePages(part_offset, part_bytes);
    MutexLock lock(&mutex);
    first.Update(status);
  });
  if (cancelled_.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     "the daemon stops: pinning of the host pool was cancelled");
  }
  return first;
}

void HostPool::InParallel(int64_t offset, int64_t bytes,
                          const std::function<void(int64_t, int64_t)>& part) const {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    while (true) {
      const int64_t begin = next.fetch_add(kStepBytes, std::memory_order_relaxed);
      if (begin >= bytes) return;
      part(offset + begin, std::min(kStepBytes, bytes - begin));
    }
  };
  const int64_t steps = (bytes + kStepBytes - 1) / kStepBytes;
  std::vector<Thread> helpers;
  for (int64_t i = 1; i < std::min<int64_t>(options_.touch_threads, steps); ++i) {
    absl::StatusOr<Thread> helper = Thread::Start("kvtier-touch", work);
    if (!helper.ok()) break;  // the others do its share
    helpers.push_back(*std::move(helper));
  }
  work();
}

void HostPool::UnpinAll() {
  while (!registrations_.empty()) registrations_.pop_back();
}

void HostPool::Finish(absl::Status status) {
  MutexLock lock(&mutex_);
  state_.store(status.ok() ? State::kReady : State::kFailed, std::memory_order_release);
  status_ = std::move(status);
  changed_.NotifyAll();
}

absl::Status HostPool::WaitReady(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (state_.load(std::memory_order_acquire) == State::kPinning) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                       "the host pool is still being pinned");
    }
    changed_.WaitFor(&mutex_, std::min(left, absl::Hours(1)));
  }
  return status_;
}

absl::Status HostPool::CheckReady() const {
  MutexLock lock(&mutex_);
  return CheckReadyLocked();
}

absl::Status HostPool::CheckReadyLocked() const {
  if (state_.load(std::memory_order_acquire) != State::kPinning) return status_;
  return MakeRetryableError(
      absl::StatusCode::kUnavailable, "POOL_PINNING", "the host pool is still being pinned",
      absl::Milliseconds(500),
      {{"pinned_bytes", absl::StrCat(pinned_bytes_.load(std::memory_order_relaxed))},
       {"limit_bytes", absl::StrCat(options_.size_bytes)}});
}

absl::Status HostPool::Exhausted(int64_t bytes) const {
  const ErrorMetadata metadata = {
      {"requested_bytes", absl::StrCat(bytes)},
      {"free_bytes", absl::StrCat(space_.free_bytes())},
      {"used_bytes", absl::StrCat(space_.used_bytes())},
      {"largest_contiguous_bytes", absl::StrCat(space_.largest_free_bytes())},
      {"limit_bytes", absl::StrCat(options_.size_bytes)}};
  const std::string message =
      absl::StrCat("the host pool of ", options_.size_bytes, " bytes has no room for ", bytes, " (",
                   space_.free_bytes(), " free, ", space_.largest_free_bytes(),
                   " in one piece); a larger --pool_bytes or a smaller block_count is needed");
  // Others may leave; but nobody can make room for more than there is.
  if (bytes <= options_.size_bytes) {
    return MakeRetryableError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
                              absl::StrCat(message, ", or another cache must end"),
                              kFullPoolRetryDelay, metadata);
  }
  return MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED", message, metadata);
}

absl::StatusOr<PoolPart> HostPool::Adopt(int64_t offset_bytes, int64_t bytes) {
  MutexLock lock(&mutex_);
  if (offset_bytes % kPoolAlignmentBytes != 0 || bytes % kPoolAlignmentBytes != 0 ||
      !space_.TakeAt(offset_bytes, bytes)) {
    return absl::DataLossError("its part of the pool is not free, or not inside");
  }
  space_.MarkDirty(offset_bytes, bytes);
  return PoolPart(this, memory_.data() + offset_bytes, offset_bytes, bytes);
}

absl::StatusOr<PoolPart> HostPool::Carve(int64_t bytes,
                                         const std::function<absl::Status()>& may_go_on) {
  if (bytes <= 0) return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1");
  const int64_t size = bytes > options_.size_bytes ? bytes : RoundUp(bytes);
  std::optional<int64_t> offset;
  std::vector<PoolSpace::Range> dirty;
  {
    MutexLock lock(&mutex_);
    KVTIER_RETURN_IF_ERROR(CheckReadyLocked());
    offset = space_.Take(size);
    if (!offset) return Exhausted(size);
    dirty = space_.DirtyIn(*offset, size);
  }
  PoolPart part(this, memory_.data() + *offset, *offset, size);
  KVTIER_RETURN_IF_ERROR(Wipe(dirty, may_go_on));
  MutexLock lock(&mutex_);
  space_.MarkDirty(*offset, size);  // whoever has it may write
  return part;
}

// What another cache left must not be read by the next one. Outside the lock: it takes a while, and
// the ranges are nobody else's.
absl::Status HostPool::Wipe(const std::vector<PoolSpace::Range>& ranges,
                            const std::function<absl::Status()>& may_go_on) {
  std::atomic<bool> refused{false};
  Mutex mutex;  // rank: leaf
  absl::Status first;
  for (const PoolSpace::Range& range : ranges) {
    InParallel(range.offset_bytes, range.bytes, [&](int64_t offset, int64_t bytes) {
      if (refused.load(std::memory_order_relaxed)) return;
      const absl::Status asked = may_go_on ? may_go_on() : absl::OkStatus();
      if (!asked.ok()) {
        refused.store(true, std::memory_order_relaxed);
        MutexLock lock(&mutex);
        first.Update(asked);
        return;
      }
      std::memset(memory_.data() + offset, 0, static_cast<size_t>(bytes));
      MutexLock lock(&mutex_);
      space_.MarkClean(offset, bytes);
    });
    if (refused.load(std::memory_order_relaxed)) break;
  }
  MutexLock lock(&mutex);
  return first;
}

void HostPool::GiveBack(int64_t offset_bytes, int64_t size_bytes, bool untouched) {
  MutexLock lock(&mutex_);
  if (untouched) space_.MarkClean(offset_bytes, size_bytes);
  space_.GiveBack(offset_bytes, size_bytes);
}

HostPool::Stats HostPool::stats() const {
  Stats stats;
  stats.state = state_.load(std::memory_order_acquire);
  stats.total_bytes = options_.size_bytes;
  stats.pinned_bytes = pinned_bytes_.load(std::memory_order_relaxed);
  if (stats.state == State::kReady) {
    stats.huge_bytes = huge_bytes_.load(std::memory_order_relaxed);
    stats.page_bytes =
        stats.huge_bytes == stats.total_bytes ? kPoolAlignmentBytes : sysconf(_SC_PAGESIZE);
  }
  MutexLock lock(&mutex_);
  stats.used_bytes = space_.used_bytes();
  stats.largest_free_bytes = stats.state == State::kReady ? space_.largest_free_bytes() : 0;
  return stats;
}

}  // namespace kvtier
