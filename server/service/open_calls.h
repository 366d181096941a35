// Which calls are at work: what a shutdown waits for, by name, and then ends; and whether more may
// begin.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/mutex.h"

namespace kvtier {

// Thread-safe.
class OpenCalls {
  struct State;

 public:
  // What can end a call before its work is done. Thread-safe; may outlive the call, harmlessly.
  class Ending {
   public:
    virtual ~Ending() = default;
    // Nothing, if the call has been answered.
    virtual void End(const absl::Status& status) = 0;
  };

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

    // From now on EndAll ends it. Once.
    void MayEnd(std::shared_ptr<Ending> ending) const;

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
  // Ends those that may be ended with UNAVAILABLE / DRAINING. After Close.
  void EndAll();

 private:
  struct State {
    mutable Mutex mutex;  // rank: a leaf
    CondVar changed;
    std::map<absl::string_view, int> counts KVTIER_GUARDED_BY(mutex);
    absl::flat_hash_map<const Entry*, std::shared_ptr<Ending>> endings KVTIER_GUARDED_BY(mutex);
    bool closed KVTIER_GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
