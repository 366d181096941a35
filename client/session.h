// A worker's session with the daemon of its node: the lease under which it holds memory.
//
//   auto session = kvtier::client::Session::Open({.socket_path = "/run/kvtierd/kvtierd.sock",
//                                                 .client_name = "decode-0"});
//   if (!session.ok()) return session.status();
//   auto cache = kvtier::client::Cache::Attach(*session, {.cache = "kv", .layout = layout});
//
// client/example.cc is a whole worker.
//
// The session is one long call. It breaks when either side dies: the daemon then takes back what
// the worker held, and the worker hears of it through `on_event` and status(). Nothing has to be
// sent to keep it alive.
//
// When the daemon is lost, the memory of attached caches stays mapped and may be read; calls fail
// with UNAVAILABLE at once. A session never comes back: open a new one, attach again, and start
// from empty hot buffers.
//
// A stream of the worker's that waits for the daemon's work (the RPC plane on a GPU) is let go when
// the session ends, and what the daemon had not done is not done then: look at status() once the
// stream has passed, before outputs are used or a backup is relied upon. While the session lives it
// waits for as long as the daemon's device takes, even one that hangs. Who wants a bound calls with
// `wait`, or WaitTicket, and ends the session when that is too late.
//
// Thread-safe. After fork() the child must not use sessions, caches and requests of its parent:
// their calls fail there with FAILED_PRECONDITION at once, and destroying them does nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/kvtier/v1/kvtier.pb.h"

namespace kvtier::client {

class Connection;

enum class SessionState {
  kOpen,
  kDraining,  // the daemon admits nothing new; what runs goes on: finish and leave
  kRevoked,   // ended by the daemon: its memory may be in other hands
  kLost,      // the daemon died, or the connection broke
  kClosed,    // ended by this process
};

// A change of state that this process did not make: to kDraining, kRevoked or kLost.
struct SessionEvent {
  SessionState state = SessionState::kOpen;
  std::string message;  // why, for people
};

struct SessionOptions {
  // The daemon's Unix socket; at most 107 bytes. "unix:" in front is allowed.
  std::string socket_path;
  // For operators: the name of the process or engine. At most 128 bytes.
  std::string client_name;
  // Longest time that any call waits for the daemon, but AttachCache, which has a time of its own
  // (AttachOptions). > 0.
  absl::Duration call_timeout = absl::Seconds(5);
  // Open() waits up to call_timeout for a daemon that is not there yet.
  bool wait_for_daemon = false;
  // Where descriptors are passed, if this process sees that socket under another path than the
  // daemon does (a container). Empty: as the daemon says, or of that name beside socket_path.
  std::string fd_socket_path;
  // Hears of changes, in order, on a thread of the session, perhaps before Open() has returned.
  // May make calls; must not destroy the session, nor wait for a thread that does.
  std::function<void(const SessionEvent&)> on_event;
};

class Session {
 public:
  // Opens a session. Errors: INVALID_ARGUMENT / FIELD_INVALID for bad options; UNAVAILABLE where
  // no daemon answers at the socket, with what is wrong with it; UNAVAILABLE / DRAINING;
  // RESOURCE_EXHAUSTED / LIMIT_REACHED; UNIMPLEMENTED where another server answers, or a daemon
  // of another API; DEADLINE_EXCEEDED.
  static absl::StatusOr<Session> Open(SessionOptions options);

  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;
  // Ends the session. Caches attached with it stay mapped but can do nothing any more, so destroy
  // them first. Waits for a callback that is running.
  ~Session();

  // Names the session; begins with boot_id().
  const std::string& id() const;
  // Another one with every start of the daemon.
  const std::string& boot_id() const;
  const std::string& daemon_version() const;
  // What a cache can be attached on.
  const std::vector<v1::Device>& devices() const;

  SessionState state() const;
  // OK while calls can be made. Else UNAVAILABLE (lost), NOT_FOUND / SESSION_UNKNOWN (revoked),
  // FAILED_PRECONDITION (closed, or another process after fork()), with the reason in words.
  absl::Status status() const;

  // Waits until the session has ended, at most `timeout`. Has it?
  bool WaitUntilEnded(absl::Duration timeout) const;

  // For the other classes of the library.
  const std::shared_ptr<Connection>& connection() const { return connection_; }

 private:
  explicit Session(std::shared_ptr<Connection> connection);

  std::shared_ptr<Connection> connection_;  // null only after a move
};

}  // namespace kvtier::client
