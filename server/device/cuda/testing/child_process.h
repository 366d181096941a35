// This test's program, started again: a process that has not touched CUDA.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace kvtier::testing {

// Speaks by lines: our Send is its stdin, its stdout our Receive.
class ChildProcess {
 public:
  static constexpr int kDescriptor = 3;  // where the child finds `descriptor`
  static constexpr int kSecondsMax = 60;

  explicit ChildProcess(const std::vector<std::string>& arguments, int descriptor = -1);
  ~ChildProcess();  // ends it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Send(const std::string& line) const;
  // Nothing if it has ended, or said nothing for kSecondsMax.
  std::optional<std::string> Receive();
  // Everything it says until it ends; stopped after kSecondsMax of silence.
  std::string ReceiveAll();
  void Kill();
  // Waits for its end: its exit status, or -1 if a signal ended it.
  int Wait();

 private:
  bool ReceiveSome();

  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
  std::string received_;
};

// Bytes as two hexadecimal digits each, to pass handles on a command line.
std::string Hex(const void* data, size_t bytes);
bool FromHex(const std::string& text, void* data, size_t bytes);

}  // namespace kvtier::testing
