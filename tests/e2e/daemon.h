// A real kvtierd in a process of its own, for tests.
//
//   Daemon daemon({.pool_bytes = 64 << 20});
//   auto session = daemon.Open("worker-0");
//
// The binary must be in the test's data: //server:kvtierd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"

namespace kvtier::e2e {

// Generous: only a failure ever waits so long.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

struct DaemonOptions {
  int64_t pool_bytes = int64_t{64} << 20;
  std::string backend = "cpu";
  std::vector<std::string> flags;  // further ones
  std::string binary = "server/kvtierd";
  std::string log_path;  // its log is appended to; empty: with the test's own
};

class Daemon {
 public:
  explicit Daemon(DaemonOptions options = {});
  // Kills it, if it still runs, and removes its folder.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  pid_t pid() const { return pid_; }

  // Starts it again on the same socket after Kill() or Stop().
  void Start();
  // kill -9, and waits until the process is gone.
  void Kill();
  // SIGTERM; returns the exit status, -1 after a signal.
  int Stop();
  // Waits until it has ended by itself; as Stop().
  int Wait();

  // A session, once the daemon serves.
  absl::StatusOr<client::Session> Open(const std::string& client_name,
                                       client::SessionOptions options = {}) const;

  v1::KvTierAdmin::Stub& admin() { return *admin_; }
  // Statistics of all caches; a test failure and an empty message if the call fails.
  v1::GetStatsResponse Stats();
  // Reads statistics until `condition` holds. False when kPatience has passed.
  bool WaitForStats(const std::function<bool(const v1::GetStatsResponse&)>& condition);
  // Waits until the pool is ready. False when kPatience has passed.
  bool WaitUntilReady();

 private:
  const DaemonOptions options_;
  std::string folder_;
  std::string socket_path_;
  pid_t pid_ = -1;
  std::unique_ptr<v1::KvTierAdmin::Stub> admin_;
};

}  // namespace kvtier::e2e
