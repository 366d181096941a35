#include "server/core/thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {

struct Thread::Body {
  std::string name;
  std::function<void()> function;
};

void* Thread::Main(void* start) {
  const std::unique_ptr<Body> owned(static_cast<Body*>(start));
  pthread_setname_np(pthread_self(), owned->name.c_str());
  owned->function();
  return nullptr;
}

absl::StatusOr<Thread> Thread::Start(absl::string_view name, std::function<void()> body) {
  auto start = std::make_unique<Body>(
      Body{.name = std::string(name.substr(0, 15)), .function = std::move(body)});
  // A thread starts with its creator's mask, so that there is no moment without it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Thread thread;
  const int error = pthread_create(&thread.handle_, nullptr, &Thread::Main, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                     absl::StrCat("cannot start thread '", name, "': ", strerror(error)),
                     {{"limit", "threads"}});
  }
  static_cast<void>(start.release());  // Main's
  thread.joinable_ = true;
  return thread;
}

Thread::Thread(Thread&& other) noexcept
    : handle_(other.handle_), joinable_(std::exchange(other.joinable_, false)) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    handle_ = other.handle_;
    joinable_ = std::exchange(other.joinable_, false);
  }
  return *this;
}

void Thread::Join() {
  if (joinable_) pthread_join(handle_, nullptr);
  joinable_ = false;
}

}  // namespace kvtier
