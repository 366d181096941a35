// Which calls are at work: what a shutdown waits for, by name; and whether more may begin.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe.
class OpenCalls {
  struct State;

 public:
  // One call at work, from construction to destruction. Calls that go on until somebody ends
  // them (WatchStats, an idle RunSteps) have none. May outlive the OpenCalls: a completion that a
  // device owes may come late.
  class Entry {
   public:
    // `name` must live as long: a literal.
    Entry(OpenCalls* calls, const char* name);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const std::shared_ptr<State> state_;
    const char* const name_;
  };

  OpenCalls() : state_(std::make_shared<State>()) {}

  // From now on CheckOpen says UNAVAILABLE / DRAINING.
  void Close();
  // Asked by a call that has its entry already, so that none slips past Close and WaitUntilNone.
  absl::Status CheckOpen() const;

  // "AttachCache", or "SwapIn x3" where there are several; by name.
  std::vector<std::string> Names() const;
  // False if some are still open at the deadline.
  bool WaitUntilNone(absl::Time deadline) const;

 private:
  struct State {
    mutable Mutex mutex;  // rank: a leaf
    CondVar changed;
    std::map<absl::string_view, int> counts KVTIER_GUARDED_BY(mutex);
    bool closed KVTIER_GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
