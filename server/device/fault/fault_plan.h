// What shall go wrong in a fault-injecting backend, and when. For tests.
//
//   auto plan = std::make_shared<FaultPlan>();
//   auto backend = MakeFaultInjectingBackend(*MakeCpuBackend({}), plan);
//   plan->FailNth(DeviceOperation::kRegisterHost, 3, absl::ResourceExhaustedError("full"));
//   auto delay = plan->DelayNth(DeviceOperation::kBackup, 1);
//   ... delay->WaitUntilReached(); ... delay->Release();
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/core/mutex.h"

namespace kvtier {

enum class DeviceOperation {
  // Calls that can fail.
  kAllocate,
  kExport,
  kCreateStream,
  kRegisterHost,
  kSwapIn,
  kReplayPlan,
  kBackup,
  kInvalidate,
  kResetRegion,
  kWrite,
  kRead,
  kNotify,
  kSignalWord,
  kWaitWord,
  // The ends of what was made: can be counted and delayed only.
  kFree,
  kDestroyStream,
  kUnregisterHost,
};
inline constexpr int kDeviceOperationCount = 17;
absl::string_view DeviceOperationName(DeviceOperation operation);

// Holds one operation until it is told to let go. Thread-safe.
class Delay {
 public:
  ~Delay() { Release(); }
  // Waits until the operation has come.
  void WaitUntilReached();
  bool reached() const;
  // Lets it go on; what comes later is not held.
  void Release();

 private:
  friend class FaultPlan;
  // Outlives the Delay while an operation is in it.
  struct State {
    Mutex mutex;  // rank: leaf
    CondVar changed;
    bool reached KVTIER_GUARDED_BY(mutex) = false;
    bool released KVTIER_GUARDED_BY(mutex) = false;
    void Pass();
  };
  explicit Delay(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

// Thread-safe. Numbers count calls from now on: 1 is the next one.
class FaultPlan {
 public:
  // The call does nothing and returns `status`.
  void FailNth(DeviceOperation operation, int64_t nth, absl::Status status);
  // The same for the nth of all calls that can fail, counted together.
  void FailNthCall(int64_t nth, absl::Status status);
  // The same for the nth of those that this thread makes, and for those behind it until `count`
  // have failed: what other threads call meanwhile does not move it. One at a time.
  void FailNthCallHere(int64_t nth, absl::Status status, int64_t count = 1);
  // Every call from now on, until Clear.
  void FailEvery(DeviceOperation operation, absl::Status status);
  // Work on a device stream is enqueued with success, is not done, and the next Notify reports
  // `status`. For kNotify itself: its callback gets `status`.
  void FailWorkNth(DeviceOperation operation, int64_t nth, absl::Status status);
  // Work on a device stream: the call returns at once, and the stream stands still before it.
  // Everything else: the call stands still before it does anything.
  std::unique_ptr<Delay> DelayNth(DeviceOperation operation, int64_t nth);
  // Runs `what` first, in the call. For calls that can fail.
  void BeforeNth(DeviceOperation operation, int64_t nth, std::function<void()> what);
  // Health and all calls are UNAVAILABLE / DEVICE_LOST from now on, and so is what a Notify
  // reports that has not run.
  void LoseDevice(absl::string_view cause);
  // Forgets all of the above that has not happened; the device is well again.
  void Clear();

  int64_t calls(DeviceOperation operation) const;  // since the plan was made
  int64_t faults() const;                          // errors that were given out
  // Nothing of the above is to happen, and the device is well.
  bool quiet() const;

  // ---- For the backend.
  struct Verdict {
    absl::Status call;           // not OK: return it, do nothing
    absl::Status work;           // not OK: do not do the work, report it later
    std::function<void()> hold;  // not null: call it where the operation shall wait
  };
  Verdict OnCall(DeviceOperation operation) KVTIER_EXCLUDES(mutex_);
  // OK unless the device is lost.
  absl::Status Health() const;

 private:
  struct Fault {
    absl::Status status;
    bool at_call = true;
  };
  struct Own {  // of one thread
    std::thread::id thread;
    int64_t calls_before = 0;  // that do not fail
    int64_t faults_left = 0;
    absl::Status status;
  };
  struct Operation {
    int64_t calls = 0;
    std::map<int64_t, Fault> faults;                          // by number of the call
    std::map<int64_t, std::shared_ptr<Delay::State>> delays;  // by number of the call
    std::map<int64_t, std::function<void()>> before;          // by number of the call
    absl::Status every;
  };
  Verdict Judge(DeviceOperation operation, std::function<void()>* before) KVTIER_EXCLUDES(mutex_);
  Operation& of(DeviceOperation operation) KVTIER_REQUIRES(mutex_) {
    return operations_[static_cast<size_t>(operation)];
  }

  mutable Mutex mutex_;  // rank: leaf
  std::array<Operation, kDeviceOperationCount> operations_ KVTIER_GUARDED_BY(mutex_);
  int64_t failable_calls_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, absl::Status> any_faults_ KVTIER_GUARDED_BY(mutex_);
  Own own_ KVTIER_GUARDED_BY(mutex_);
  absl::Status lost_ KVTIER_GUARDED_BY(mutex_);
  int64_t faults_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
