// A thread that can fail to start, and that signals leave alone. Internal to client/.
#pragma once

#include <pthread.h>

#include <functional>

#include "absl/status/status.h"

namespace kvtier::client {

// Joins in its destructor. std::thread throws where the system has no thread left, and that would
// end the engine that this library is a part of.
class Thread {
 public:
  Thread() = default;  // none
  ~Thread() { Join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // Once. Every signal is blocked in it: signals are the engine's. Errors: RESOURCE_EXHAUSTED /
  // LIMIT_REACHED; then `body` does not run.
  absl::Status Start(std::function<void()> body);
  // Waits for the body to return. Nothing if there is none, and the second time.
  void Join();

 private:
  static void* Main(void* thread);

  std::function<void()> body_;
  pthread_t handle_{};
  bool joinable_ = false;
};

}  // namespace kvtier::client
