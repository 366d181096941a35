// Steps on one call, ordered and pipelined: RunSteps of the RPC plane.
//
//   auto steps = kvtier::client::Steps::Open(*cache);
//   for (int32_t group = 0; group < groups; ++group) steps->SwapIn(group, num_rows);
//   steps->Backup(num_rows, /*wait=*/true);
//   for (int32_t i = 0; i <= groups; ++i) {
//     auto result = steps->Next();                       // in the order of the verbs
//     if (!result.ok()) return result.status();          // the call is broken
//     if (!result->status.ok()) return result->status;   // that step failed, the call goes on
//   }
//
// Sending never waits. The daemon runs the verbs in order, so that a last one with `wait` answers
// when all before it are complete too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache.h"

namespace kvtier::client {

class StepCall;

// The answer to one verb.
struct StepResult {
  int64_t step_id = 0;  // as the verb returned it
  absl::Status status;  // as the call of its own would have given, reason and all
  Ticket ticket;        // if status is OK
};

class Steps {
 public:
  // Verbs that were sent and whose answers Next() has not returned yet.
  static constexpr int32_t kInFlightMax = 512;

  // Opens the call. It stays usable while `cache` is attached. `device_stream` on a GPU orders
  // every verb: the daemon's work comes after all that the stream has when the verb is sent, and
  // what is enqueued on it after Next() has returned an answer comes after that verb's work.
  // Errors: as for every function of client/cache.h; that the daemon refuses the call shows in
  // Next().
  static absl::StatusOr<Steps> Open(const Cache& cache, DeviceStreamRef device_stream = nullptr);

  Steps(Steps&& other) noexcept;
  Steps& operator=(Steps&& other) noexcept;
  // Cancels what has not been answered, as far as the daemon has not begun it.
  ~Steps();

  // Each sends one verb and returns its step id: 1, 2, 3, ... Arguments and checks as the calls of
  // the same name in client/cache.h; options.device_stream is not looked at. Errors: FIELD_INVALID;
  // FAILED_PRECONDITION with kInFlightMax verbs in flight (call Next first); the call's own error
  // once it is broken.
  absl::StatusOr<int64_t> SwapIn(int32_t group, int32_t num_rows, const SwapInOptions& options = {},
                                 bool wait = false);
  absl::StatusOr<int64_t> ReplayPlan(int32_t group, int32_t num_rows,
                                     const std::optional<LayerSpan>& layers = std::nullopt,
                                     bool wait = false);
  absl::StatusOr<int64_t> Backup(int32_t num_rows, bool wait = false);
  absl::StatusOr<int64_t> WaitTicket(int64_t ticket);

  // The next answer, in the order of the verbs. Waits at most the session's call_timeout; after
  // DEADLINE_EXCEEDED the call is broken. FAILED_PRECONDITION if nothing is in flight.
  absl::StatusOr<StepResult> Next();

  // Verbs in flight.
  int32_t in_flight() const;

 private:
  explicit Steps(std::unique_ptr<StepCall> call);

  std::unique_ptr<StepCall> call_;  // null only after a move
};

}  // namespace kvtier::client
