// Peers that keep to no rule: each kind does one thing that a daemon must survive, until it is told
// to end.
//
//   silent          connects and says nothing, as often as it may
//   handshakes      breaks off in the middle of the first bytes, hundreds of times a second
//   half_frames     begins a frame and never ends it
//   streams         opens 10,000 calls on one connection
//   unread_calls    opens sessions, and never reads what they are told (a window of 0 bytes)
//   unread_steps    has steps answered on a RunSteps call that it does not read
//   unread_unary    the same with calls of their own
//   large_requests  sends the largest requests on as many calls as it can, all but the last byte
//   drip            sends everything a byte at a time
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvtier::load {

// What it did and what it saw.
struct HostileResult {
  int64_t opened = 0;      // connections
  int64_t refused = 0;     // attempts that failed
  int64_t closed = 0;      // connections that the daemon ended
  int64_t held_max = 0;    // connections at a time
  int64_t answered = 0;    // frames that ended a call, or calls that ended
  int64_t sent_bytes = 0;  // of large requests
  std::string last_word;   // the last error that it got, if any
};

struct HostileOptions {
  std::string kind;
  // As ConnectTo takes them. unread_* need the daemon's Unix socket.
  std::string address;
  int32_t count = 0;  // connections at a time; handshakes: a second; streams: calls
  // What makes it an attack at all: until then it goes on, kOvertimeMax past `end` at most. How far
  // it comes by `end` is a matter of who else has the processors.
  std::function<bool(const HostileResult&)> enough;
  absl::Time end;
};

inline constexpr absl::Duration kOvertimeMax = absl::Seconds(60);
bool GoesOn(const HostileOptions& options, const HostileResult& result);

const std::vector<std::string>& HostileKinds();
// Errors: INVALID_ARGUMENT, no such kind; and where it could not even begin.
absl::StatusOr<HostileResult> BeHostile(const HostileOptions& options);

}  // namespace kvtier::load
