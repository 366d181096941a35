// The command line of kvtierctl.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvtier::cli {

// In the usage text; keep them the same.
enum ExitCode : int {
  kDone = 0,
  kSomethingToChange = 1,  // doctor, health, drain --wait
  kBadCommandLine = 2,
  kNotReached = 3,
  kRefused = 4,
};

enum class Output { kTable, kJson };

// PEM files for an address with mutual TLS: all, or none.
struct TlsOptions {
  std::string certificate, key, ca;
  std::string server_name;  // that the daemon's certificate must have; "": the address's host

  bool given() const { return !ca.empty(); }
};

struct Arguments {
  std::string target;  // "unix:/run/kvtierd/kvtierd.sock" or "host:port"
  TlsOptions tls;
  Output output = Output::kTable;
  absl::Duration timeout = absl::Seconds(5);
  absl::Duration interval = absl::Seconds(1);  // top
  std::optional<int> iterations;               // top; absent: until it is ended
  std::string message;                         // drain, evict
  absl::Duration wait;                         // drain; for sessions to leave
  std::string root;                            // doctor: in front of /proc and /sys, for tests
  std::string command;                         // "stats"
  std::vector<std::string> operands;           // what follows it

  // The path of the Unix socket, or "".
  std::string socket_path() const;
};

// `environment_socket` is the value of KVTIERD_SOCKET, or "". Errors: INVALID_ARGUMENT, naming what
// was probably meant.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments,
                                         const std::string& environment_socket);

// What --help prints.
std::string Usage();
// A completion script for bash.
std::string BashCompletion();

}  // namespace kvtier::cli
