#include "server/device/cpu/cpu_stepper.h"

namespace kvtier {

void CpuStepper::Add(const std::shared_ptr<OperationQueue>& queue) {
  MutexLock lock(&mutex_);
  queues_.push_back(queue);
}

std::shared_ptr<OperationQueue> CpuStepper::Get(int stream) const {
  MutexLock lock(&mutex_);
  if (stream < 0 || stream >= static_cast<int>(queues_.size())) return nullptr;
  return queues_[stream].lock();
}

bool CpuStepper::Step(int stream) {
  const std::shared_ptr<OperationQueue> queue = Get(stream);
  return queue != nullptr && queue->RunOne();
}

int CpuStepper::RunAll() {
  int steps = 0;
  for (bool moved = true; moved;) {
    moved = false;
    int count = 0;
    {
      MutexLock lock(&mutex_);
      count = static_cast<int>(queues_.size());
    }
    for (int stream = 0; stream < count; ++stream) {
      if (!Step(stream)) continue;
      moved = true;
      ++steps;
    }
  }
  return steps;
}

int CpuStepper::pending(int stream) const {
  const std::shared_ptr<OperationQueue> queue = Get(stream);
  return queue == nullptr ? 0 : queue->size();
}

}  // namespace kvtier
