// The life of two workers in steps, each of which can fail and be tried again. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/session/node_fixture.h"

namespace kvtier {

// Every verb of the node comes, with inputs inline and in step buffers. There are two sessions, so
// that invalidations and quarantines cross device streams.
class NodeLife : public NodeFixture {
 protected:
  // Is this what a step may fail with?
  using Judge = std::function<::testing::AssertionResult(const absl::Status& status)>;

  NodeLife() : NodeLife(Options{}) {}
  explicit NodeLife(const Options& options);

  // One life on a fresh node, in which steps may fail for a reason of the caller's: then what they
  // met is judged, nothing may have changed, and the next attempt must succeed. Returns how many
  // attempts failed.
  int Live(const Judge& judge);

  // The names of all steps that have failed so far.
  const std::set<std::string>& met_steps() const { return met_steps_; }

  // Called when the node is there, and nothing else has happened: faults are counted from here on.
  virtual void OnBegin() {}
  // Around all that a test does by itself: nothing of it may fail.
  virtual void BeginOwnWork() {}
  virtual void EndOwnWork() {}

  // A write of inputs is lost, and the step after it runs nevertheless, on what was there before.
  // Its call says so, but what it did cannot be judged. (A GPU runs nothing after that.)
  bool lost_writes_ = false;
  // So many attempts of a step may fail, one after another.
  int failed_attempts_max_ = 1;

 private:
  struct Step {
    std::string name;
    std::function<absl::Status()> run;
  };

  // Returns how many attempts failed; more than may, if it never worked.
  int LiveStep(const Step& step, const Judge& judge);
  std::vector<Step> Steps();
  std::vector<Step> RecycledSteps();
  // What a verb must leave as it was when it fails.
  std::vector<int64_t> State();

  absl::Status OpenStep(Worker* worker);
  absl::Status AttachStep(Worker* worker);
  absl::Status AdmitStep(const Worker& worker);
  absl::Status AssignStep(int32_t count);
  absl::Status ReleaseStep(const Worker& worker);
  // The row of `position` is `salt`'s from then on.
  absl::Status BackupStep(int32_t position, uint8_t salt);
  absl::Status BackupFromStepBuffers(int32_t position, uint8_t salt);
  // Rows of positions 0 and 1, which must be `salt`'s.
  absl::Status SwapInStep(uint8_t salt);
  // The same, first the leader's and then the follower's.
  absl::Status SwapInFromStepBuffers(uint8_t salt);

  int32_t SlotOf(int32_t position);
  void FillNewest(int32_t slot, uint8_t salt);
  // OK, or the error of the call or of the work.
  absl::Status Wait(const absl::StatusOr<int64_t>& ticket);

  const bool has_folder_;
  const CacheLayout layout_;
  Worker one_, two_;
  std::set<std::string> met_steps_;
};

}  // namespace kvtier
