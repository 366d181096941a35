#include "server/service/readiness.h"

#include <string.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvtier {

std::string Readiness::Reason() const {
  if (const absl::Status health = backend_->Health(); !health.ok()) {
    return absl::StrCat("device: ", health.message());
  }
  if (closed() || node_->draining()) return "draining";
  if (std::string still = node_->DeviceStandsStill(); !still.empty()) return still;
  if (const int error = connections_->accept_error(); error != 0) {
    return absl::StrCat("no connection can be accepted: ", strerror(error));
  }
  const HostPool::Stats pool = pool_->stats();
  if (pool.state == HostPool::State::kFailed) return "the host pool could not be pinned";
  if (pool.state == HostPool::State::kReady) return "";
  return absl::StrCat("pinning the host pool of ", pool.total_bytes, " bytes");
}

std::string Readiness::StoppingMessage() const {
  constexpr char kStopping[] = "the daemon stops";
  const absl::Status health = backend_->Health();
  return health.ok() ? kStopping : absl::StrCat(kStopping, ": ", health.message());
}

std::string Readiness::ReasonLogged() {
  std::string reason = Reason();
  {
    MutexLock lock(&mutex_);
    if (reason == last_) return reason;
    last_ = reason;
  }
  // Pinning, draining and being ready are said where they happen.
  if (!backend_->Health().ok() || absl::StartsWith(reason, "device ")) {
    log_->Event(LogLevel::kWarning, "not_ready", {{"why", reason}});
  }
  return reason;
}

}  // namespace kvtier
