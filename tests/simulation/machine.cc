#include "tests/simulation/machine.h"

#include <utility>

#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"

namespace kvtier::simulation {

Machine::Machine()
    : backend_(MakeFaultInjectingBackend(*MakeCpuBackend({.stepper = stepper_}), plan_)) {}

void Machine::SetWeather(Weather weather, uint64_t seed, std::function<void()> lose_lease) {
  weather_ = weather;
  // Calls do what is left to do for device streams without work, or leave it to their steps.
  stepper_->SetWorksHere(weather != Weather::kLate && seed % 2 == 0);
  random_.seed(seed);
  lose_lease_ = std::move(lose_lease);
}

void Machine::Interrupt(int64_t moves, std::function<void()> what) {
  moves_left_ = moves;
  interrupt_ = std::move(what);
}

void Machine::CountMove() {
  if (moves_left_ > 0 && --moves_left_ == 0) std::exchange(interrupt_, nullptr)();
}

bool Machine::Step(uint64_t stream) {
  CountMove();
  const int64_t streams = plan_->calls(DeviceOperation::kCreateStream);
  return streams > 0 && stepper_->Step(static_cast<int>(stream % static_cast<uint64_t>(streams)));
}

bool Machine::Move() {
  const auto streams = static_cast<uint64_t>(plan_->calls(DeviceOperation::kCreateStream));
  const uint64_t first = fuzz::Below(random_, streams + 1);
  for (uint64_t i = 0; i <= streams; ++i) {
    const uint64_t at = (first + i) % (streams + 1);
    if (at == streams) CountMove();
    const bool moved = at < streams ? Step(at) : node_ != nullptr && node_->RunReaper();
    if (moved) return true;
  }
  return false;
}

void Machine::Settle() {
  while (Move()) {
  }
}

void Machine::WaitFor(CondVar*, Mutex* mutex, absl::Duration timeout) const {
  // Others may take the lock that the caller waits under.
  mutex->Unlock();
  const_cast<Machine*>(this)->Pass(timeout);
  mutex->Lock();
}

void Machine::Pass(absl::Duration timeout) {
  CountMove();
  if (const std::function<void()> lose = std::exchange(lose_lease_, nullptr)) return lose();
  const bool only_time = weather_ == Weather::kLate;
  const bool also_time = weather_ == Weather::kMixed && fuzz::Below(random_, 3) == 0;
  if (only_time || also_time || !Move()) now_ += timeout;
}

}  // namespace kvtier::simulation
