#include "client/thread.h"

#include <signal.h>
#include <string.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace kvtier::client {

absl::Status Thread::Start(std::function<void()> body) {
  body_ = std::move(body);
  // A thread starts with its creator's mask, so that there is no moment without it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&handle_, nullptr, &Thread::Main, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  joinable_ = error == 0;
  if (joinable_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   absl::StrCat("this process cannot start a thread: ", strerror(error)),
                   {{"limit", "threads"}});
}

void Thread::Join() {
  if (joinable_) pthread_join(handle_, nullptr);
  joinable_ = false;
}

void* Thread::Main(void* thread) {
  static_cast<Thread*>(thread)->body_();
  return nullptr;
}

}  // namespace kvtier::client
