#include "server/session/progress.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// Numbers further apart than this could not be told into an order.
constexpr int32_t kDistanceMax = 1 << 30;

// How far `a` is ahead of `b`, cyclically.
int32_t Ahead(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Progress>> Progress::Create(DeviceBackend* backend) {
  KVTIER_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create("kvtier-progress", kBytes));
  std::unique_ptr<HostRegistration> registration;
  if (backend != nullptr) {
    KVTIER_ASSIGN_OR_RETURN(registration, backend->RegisterHost(memory.data(), kBytes));
  }
  return std::shared_ptr<Progress>(new Progress(std::move(memory), std::move(registration)));
}

absl::Status Progress::Expect(int32_t number) {
  MutexLock lock(&mutex_);
  // From each of them, not from the last alone: in steps of 2^30 they would go round, and no number
  // would reach all.
  for (const int32_t wait : waits_) {
    const int32_t ahead = Ahead(number, wait);
    if (ahead > kDistanceMax || ahead < -kDistanceMax) {
      return FieldInvalid("after_worker", absl::StrCat(number),
                          absl::StrCat("at most ", kDistanceMax, " away from ", wait,
                                       ", which is still waited for"));
    }
  }
  waits_.push_back(number);
  return absl::OkStatus();
}

int64_t Progress::expected_count() const {
  MutexLock lock(&mutex_);
  return passed_count_ + static_cast<int64_t>(waits_.size());
}

void Progress::Passed(int64_t count) {
  MutexLock lock(&mutex_);
  for (; passed_count_ < count && !waits_.empty(); ++passed_count_) waits_.pop_front();
}

bool Progress::behind() const {
  const int32_t now = std::atomic_ref<int32_t>(*worker_word()).load(std::memory_order_acquire);
  MutexLock lock(&mutex_);
  return std::any_of(waits_.begin(), waits_.end(),
                     [now](int32_t wait) { return Ahead(now, wait) < 0; });
}

void Progress::Release() {
  if (!behind()) return;
  MutexLock lock(&mutex_);
  const auto furthest = std::max_element(waits_.begin(), waits_.end(),
                                         [](int32_t a, int32_t b) { return Ahead(b, a) > 0; });
  if (furthest == waits_.end()) return;
  std::atomic_ref<int32_t>(*worker_word()).store(*furthest, std::memory_order_release);
}

}  // namespace kvtier
