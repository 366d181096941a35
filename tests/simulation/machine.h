// The machine of a simulation: a clock and a device that move only when they are told, so that
// production code above them runs on one thread in an order that a seed decides.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/device/cpu/cpu_stepper.h"
#include "server/device/fault/fault_plan.h"
#include "server/session/node.h"
#include "tests/fuzz/target.h"

namespace kvtier::simulation {

// What goes on while a call waits.
enum class Weather {
  kPrompt,     // the device works, device streams in any order; time stands still
  kMixed,      // the device works and time passes
  kLate,       // only time passes
  kLostLease,  // as kPrompt, after the caller's session has ended
};

class Machine final : public Clock {
 public:
  Machine();

  DeviceBackend& backend() { return *backend_; }
  FaultPlan& plan() { return *plan_; }

  // The node whose reaper runs while somebody waits; null: none.
  void SetNode(Node* node) { node_ = node; }
  // Until the next call of this. `lose_lease` runs once, at the first wait.
  void SetWeather(Weather weather, uint64_t seed, std::function<void()> lose_lease = nullptr);

  // Runs `what` once, before the `moves`th thing (from 1) that happens from now on. 0: never.
  void Interrupt(int64_t moves, std::function<void()> what);

  // One operation of device stream `stream`, modulo how many there have been. False: none moved.
  bool Step(uint64_t stream);
  // Everything that can happen, does. Time stands still.
  void Settle();
  void Advance(absl::Duration by) { now_ += by; }

  absl::Time Now() const override { return now_; }
  void WaitFor(CondVar* changed, Mutex* mutex, absl::Duration timeout) const override
      KVTIER_REQUIRES(mutex);

 private:
  void Pass(absl::Duration timeout);
  void CountMove();
  // Something that can happen, chosen by the seed. False: nothing can.
  bool Move();

  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
  const std::shared_ptr<CpuStepper> stepper_ = std::make_shared<CpuStepper>();
  const std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<DeviceBackend> backend_;
  Node* node_ = nullptr;
  Weather weather_ = Weather::kPrompt;
  fuzz::Random random_;
  std::function<void()> lose_lease_;
  int64_t moves_left_ = 0;
  std::function<void()> interrupt_;
};

}  // namespace kvtier::simulation
