#include "server/service/open_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/error.h"

namespace kvtier {

OpenCalls::Entry::Entry(OpenCalls* calls, const char* name) : state_(calls->state_), name_(name) {
  MutexLock lock(&state_->mutex);
  ++state_->counts[name_];
}

OpenCalls::Entry::~Entry() {
  std::shared_ptr<Ending> ending;  // let go of outside of the lock
  MutexLock lock(&state_->mutex);
  if (const auto found = state_->endings.find(this); found != state_->endings.end()) {
    ending = std::move(found->second);
    state_->endings.erase(found);
  }
  const auto found = state_->counts.find(name_);
  if (--found->second == 0) state_->counts.erase(found);
  if (state_->counts.empty()) state_->changed.NotifyAll();
}

void OpenCalls::Entry::MayEnd(std::shared_ptr<Ending> ending) const {
  MutexLock lock(&state_->mutex);
  state_->endings.emplace(this, std::move(ending));
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

void OpenCalls::EndAll() {
  std::vector<std::shared_ptr<Ending>> endings;
  {
    MutexLock lock(&state_->mutex);
    for (auto& [entry, ending] : state_->endings) endings.push_back(std::move(ending));
    state_->endings.clear();
  }
  const absl::Status status = MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                                        "the daemon stops and could not end the call in time; what "
                                        "it was to change may have changed");
  for (const std::shared_ptr<Ending>& ending : endings) ending->End(status);
}

}  // namespace kvtier
