#include "server/session/progress.h"

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
  const int64_t last = expected_.load();
  if (last != kNothing) {
    const int32_t ahead = Ahead(number, static_cast<int32_t>(last));
    if (ahead > kDistanceMax || ahead < -kDistanceMax) {
      return FieldInvalid("after_worker", absl::StrCat(number),
                          absl::StrCat("at most ", kDistanceMax, " away from ", last));
    }
    if (ahead <= 0) return absl::OkStatus();
  }
  expected_.store(number);
  return absl::OkStatus();
}

bool Progress::behind() const {
  const int64_t expected = expected_.load();
  if (expected == kNothing) return false;
  const int32_t now = std::atomic_ref<int32_t>(*worker_word()).load(std::memory_order_acquire);
  return Ahead(now, static_cast<int32_t>(expected)) < 0;
}

void Progress::Release() {
  if (!behind()) return;
  std::atomic_ref<int32_t>(*worker_word())
      .store(static_cast<int32_t>(expected_.load()), std::memory_order_release);
}

}  // namespace kvtier
