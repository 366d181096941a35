// A bare gRPC server that answers the daemon's calls with what it is given: what a call costs when
// nobody does anything for it.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "proto/kvtier/v1/kvtier.pb.h"

namespace kvtier::e2e {

// Answers of the size that the daemon's have.
struct EchoAnswers {
  v1::GetStatsResponse stats;
  v1::AssignBlocksResponse assigned;
  v1::FreeBlocksResponse freed;
  v1::InvalidateBlocksResponse invalidated;

  // As a text of its own, to be handed to another process.
  std::string Serialize() const;
  static EchoAnswers Parse(const std::string& text);
};

// Serves GetStats, AssignBlocks, FreeBlocks and InvalidateBlocks at a Unix socket, on the callback
// API as the daemon does, until the process ends.
[[noreturn]] void ServeEcho(const std::string& socket_path, EchoAnswers answers);

// The same in a process of its own: this program again, with --echo=SOCKET and --answers=FILE.
// Ends with the calling process.
class EchoProcess {
 public:
  EchoProcess(const std::string& folder, const EchoAnswers& answers);
  ~EchoProcess();
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  int pid() const { return pid_; }

 private:
  std::string socket_path_;
  int pid_ = -1;
};

}  // namespace kvtier::e2e
