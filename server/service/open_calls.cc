#include "server/service/open_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/error.h"

namespace kvtier {

OpenCalls::Entry::Entry(OpenCalls* calls, const char* name) : state_(calls->state_), name_(name) {
  MutexLock lock(&state_->mutex);
  ++state_->counts[name_];
}

OpenCalls::Entry::~Entry() {
  MutexLock lock(&state_->mutex);
  const auto found = state_->counts.find(name_);
  if (--found->second == 0) state_->counts.erase(found);
  if (state_->counts.empty()) state_->changed.NotifyAll();
}

void OpenCalls::Close() {
  MutexLock lock(&state_->mutex);
  state_->closed = true;
}

absl::Status OpenCalls::CheckOpen() const {
  MutexLock lock(&state_->mutex);
  if (!state_->closed) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the daemon stops and takes no more calls; reconnect to the next one");
}

std::vector<std::string> OpenCalls::Names() const {
  MutexLock lock(&state_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, count] : state_->counts) {
    names.push_back(count == 1 ? std::string(name) : absl::StrCat(name, " x", count));
  }
  return names;
}

bool OpenCalls::WaitUntilNone(absl::Time deadline) const {
  MutexLock lock(&state_->mutex);
  while (!state_->counts.empty()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    state_->changed.WaitFor(&state_->mutex, left);
  }
  return true;
}

}  // namespace kvtier
