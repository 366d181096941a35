// A thread that can fail to start, and that signals leave alone.
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier {

// Owns a thread; joins it when destroyed. std::thread throws where the system has no thread
// left, and this project has no exceptions.
class Thread {
 public:
  // `name` is shown by tools like top, cut to 15 bytes. Every signal is blocked in it, so that
  // SIGTERM reaches the thread that waits for it. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED;
  // then `body` has not run and never will.
  static absl::StatusOr<Thread> Start(absl::string_view name, std::function<void()> body);

  Thread() = default;  // no thread
  Thread(Thread&& other) noexcept;
  Thread& operator=(Thread&& other) noexcept;  // joins first
  ~Thread() { Join(); }

  // Waits for `body` to return. Does nothing the second time. Not from the thread itself.
  void Join();

 private:
  struct Body;
  static void* Main(void* start);

  pthread_t handle_{};
  bool joinable_ = false;
};

}  // namespace kvtier
