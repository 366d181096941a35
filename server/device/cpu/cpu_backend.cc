#include "server/device/cpu/cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/executor.h"
#include "server/core/error.h"
#include "server/core/mutex.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_stream.h"

namespace kvtier {
namespace {

// How much of the device is allocated. Shared with the allocations, which may live longer.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t bytes_max) : bytes_max_(bytes_max) {}
  int64_t bytes_max() const { return bytes_max_; }

  bool Take(int64_t bytes) {
    MutexLock lock(&mutex_);
    if (bytes > bytes_max_ - used_bytes_) return false;
    used_bytes_ += bytes;
    return true;
  }
  void GiveBack(int64_t bytes) {
    MutexLock lock(&mutex_);
    used_bytes_ -= bytes;
  }

 private:
  const int64_t bytes_max_;
  Mutex mutex_;
  int64_t used_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

// A part of the budget, given back when destroyed.
class BudgetShare {
 public:
  BudgetShare(std::shared_ptr<MemoryBudget> budget, int64_t bytes)
      : budget_(std::move(budget)), bytes_(bytes) {}
  BudgetShare(BudgetShare&& other) noexcept = default;
  BudgetShare& operator=(BudgetShare&&) = delete;
  ~BudgetShare() {
    if (budget_ != nullptr) budget_->GiveBack(bytes_);
  }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  int64_t bytes_;
};

class CpuMemory final : public DeviceMemory {
 public:
  CpuMemory(BudgetShare share, SharedMemory memory)
      : share_(std::move(share)), memory_(std::move(memory)) {}

  uint8_t* data() const override { return memory_.data(); }
  int64_t size_bytes() const override { return memory_.size_bytes(); }
  absl::StatusOr<MemoryHandle> Export() const override {
    MemoryHandle handle;
    handle.fd = memory_.fd().Duplicate();
    if (!handle.fd.valid()) {
      return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                       "no file descriptor left to export device memory; raise the limit "
                       "(ulimit -n)",
                       {{"limit", "file descriptors"}});
    }
    return handle;
  }

 private:
  BudgetShare share_;  // given back after the memory is
  SharedMemory memory_;
};

// Which host ranges are registered. Shared with the registrations.
class HostRanges {
 public:
  absl::Status Add(uintptr_t begin, uintptr_t end) {
    MutexLock lock(&mutex_);
    if (stopped_) return RegisteringStopped();
    const auto next = ranges_.upper_bound(begin);
    const bool overlaps_next = next != ranges_.end() && next->first < end;
    const bool overlaps_previous = next != ranges_.begin() && std::prev(next)->second > begin;
    if (overlaps_next || overlaps_previous) {
      return MakeError(
          absl::StatusCode::kInternal, "DEVICE_ERROR",
          absl::StrCat("host memory of ", end - begin,
                       " bytes is registered already, or overlaps a registered part"),
          {{"device_uuid", kCpuDeviceUuid}, {"device_error", "HostMemoryAlreadyRegistered"}});
    }
    ranges_.emplace(begin, end);
    return absl::OkStatus();
  }
  void Remove(uintptr_t begin) {
    MutexLock lock(&mutex_);
    ranges_.erase(begin);
  }
  void Stop() {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }

 private:
  Mutex mutex_;
  bool stopped_ KVTIER_GUARDED_BY(mutex_) = false;
  std::map<uintptr_t, uintptr_t> ranges_ KVTIER_GUARDED_BY(mutex_);  // begin -> end
};

class CpuHostRegistration final : public HostRegistration {
 public:
  CpuHostRegistration(std::shared_ptr<HostRanges> ranges, uintptr_t begin)
      : ranges_(std::move(ranges)), begin_(begin) {}
  ~CpuHostRegistration() override { ranges_->Remove(begin_); }

 private:
  const std::shared_ptr<HostRanges> ranges_;
  const uintptr_t begin_;
};

int64_t PhysicalMemoryBytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
}

absl::Status CheckDevice(absl::string_view device_uuid) {
  if (device_uuid == kCpuDeviceUuid) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
                   absl::StrCat("no device '", device_uuid, "'; this daemon has: ", kCpuDeviceUuid),
                   {{"device_uuid", std::string(device_uuid)}, {"known", kCpuDeviceUuid}});
}

}  // namespace

// Not in the anonymous namespace: CpuStepper's friend.
class CpuBackend final : public DeviceBackend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : options_(options),
        budget_(std::make_shared<MemoryBudget>(options.memory_bytes_max > 0
                                                   ? options.memory_bytes_max
                                                   : std::numeric_limits<int64_t>::max())) {}

  std::vector<DeviceInfo> Devices() const override {
    return {{.uuid = kCpuDeviceUuid,
             .name = absl::StrCat("CPU, ", options_.threads, " thread(s) a stream"),
             .kind = BackendKind::kCpu,
             .memory_bytes = std::min(budget_->bytes_max(), PhysicalMemoryBytes())}};
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view device_uuid,
                                                         absl::string_view purpose,
                                                         int64_t bytes) override;

  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      absl::string_view device_uuid) override {
    KVTIER_RETURN_IF_ERROR(CheckDevice(device_uuid));
    auto queue = std::make_shared<OperationQueue>(
        options_.threads, options_.stepper == nullptr ? nullptr : options_.stepper->works_here_);
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream,
                            CpuStream::Create(queue, options_.stepper == nullptr));
    if (options_.stepper != nullptr) options_.stepper->Add(queue);
    return stream;
  }

  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t* data,
                                                                 int64_t bytes) override {
    if (data == nullptr || bytes <= 0) {
      return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1",
                          "host memory to register is empty");
    }
    const auto begin = reinterpret_cast<uintptr_t>(data);
    KVTIER_RETURN_IF_ERROR(host_ranges_->Add(begin, begin + static_cast<uintptr_t>(bytes)));
    return std::make_unique<CpuHostRegistration>(host_ranges_, begin);
  }

  void StopRegistering() override { host_ranges_->Stop(); }

  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  const CpuBackendOptions options_;
  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<HostRanges> host_ranges_ = std::make_shared<HostRanges>();
};

absl::StatusOr<std::unique_ptr<DeviceMemory>> CpuBackend::Allocate(absl::string_view device_uuid,
                                                                   absl::string_view purpose,
                                                                   int64_t bytes) {
  KVTIER_RETURN_IF_ERROR(CheckDevice(device_uuid));
  if (bytes <= 0) return FieldInvalid("bytes", absl::StrCat(bytes), "at least 1", purpose);
  const auto exhausted = [&](absl::string_view cause) {
    return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY_EXHAUSTED",
                     absl::StrCat("device ", kCpuDeviceUuid, " has no room for ", purpose, " of ",
                                  bytes, " bytes: ", cause),
                     {{"device_uuid", kCpuDeviceUuid}, {"requested_bytes", absl::StrCat(bytes)}});
  };
  if (!budget_->Take(bytes)) {
    return exhausted(absl::StrCat("its limit is ", budget_->bytes_max(), " bytes"));
  }
  BudgetShare share(budget_, bytes);
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::Create(absl::StrCat("kvtier:", purpose), bytes);
  if (!memory.ok()) return exhausted(memory.status().message());
  return std::make_unique<CpuMemory>(std::move(share), *std::move(memory));
}

absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeCpuBackend(const CpuBackendOptions& options) {
  if (options.threads < 1 || options.threads > cpu::Executor::kThreadsMax) {
    return FieldInvalid("threads", absl::StrCat(options.threads),
                        absl::StrCat("1..", cpu::Executor::kThreadsMax));
  }
  if (options.memory_bytes_max < 0) {
    return FieldInvalid("memory_bytes_max", absl::StrCat(options.memory_bytes_max), "at least 0");
  }
  return std::make_unique<CpuBackend>(options);
}

}  // namespace kvtier
