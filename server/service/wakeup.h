// Ends the poll() of another thread.
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// An eventfd that stays readable once woken. Thread-safe.
class Wakeup {
 public:
  static absl::StatusOr<Wakeup> Create() {
    UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd.valid()) {
      return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
    }
    return Wakeup(std::move(fd));
  }

  // What to poll for POLLIN.
  int fd() const { return fd_.get(); }
  void Wake() const {
    const uint64_t one = 1;
    // Fails only when it is readable already.
    static_cast<void>(!write(fd_.get(), &one, sizeof(one)));
  }

 private:
  explicit Wakeup(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace kvtier
