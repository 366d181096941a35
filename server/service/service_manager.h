// Tells the service manager that started this process how it is: the datagrams of sd_notify(3),
// without its library. systemd and others that know them set $NOTIFY_SOCKET; where it is not set,
// nothing is said.
//
//   ServiceManager manager = ServiceManager::FromEnvironment();
//   manager.Starting("pinning 1 of 64 GiB", absl::Minutes(1));
//   manager.Ready("64 GiB ready");
//   manager.Heartbeat(clock->Now());  // again and again, by the thread that must not be stuck
//   manager.Stopping("SIGTERM");
//
// No call waits or fails: a manager that does not read must not stop the daemon.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// Thread-safe but for Heartbeat, which is one thread's.
class ServiceManager {
 public:
  // $NOTIFY_SOCKET, and $WATCHDOG_USEC unless $WATCHDOG_PID is another process. What is malformed
  // counts as not there.
  static ServiceManager FromEnvironment();

  // `socket`: a path, or '@' and an abstract name; empty or malformed: nobody listens.
  // `watchdog_limit`: the manager takes this process for stuck when it has heard no heartbeat for
  // so long; zero: it does not look.
  ServiceManager(absl::string_view socket, absl::Duration watchdog_limit);

  // Is there anybody to tell?
  bool present() const { return socket_.get() >= 0; }

  // Still starting, and for at most `more_time` from now without another word.
  void Starting(absl::string_view status, absl::Duration more_time) const;
  // Serves, for the first time or again after Reloading. `status`: one line for people.
  void Ready(absl::string_view status) const;
  // Reads its configuration again. `monotonic_microseconds`: CLOCK_MONOTONIC.
  void Reloading(int64_t monotonic_microseconds) const;
  // Goes down. The manager expects no heartbeat from here on.
  void Stopping(absl::string_view status) const;
  // As alive at `now`. Says it thrice in the limit, however often it is called.
  void Heartbeat(absl::Time now);

 private:
  void Send(absl::string_view text) const;

  UniqueFd socket_;
  sockaddr_un address_ = {};
  socklen_t address_bytes_ = 0;
  absl::Duration watchdog_limit_;
  absl::Time last_heartbeat_ = absl::InfinitePast();
};

}  // namespace kvtier
