// This program again, several times, with other options: workers and hostile peers are processes of
// their own, as they are on a node.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace kvtier::load {

// Names and numbers or text that one process leaves in a file for another.
using Findings = std::map<std::string, std::string>;
void WriteFindings(const std::string& path, const Findings& findings);
Findings ReadFindings(const std::string& path);
// 0 if it is not there.
double NumberOf(const Findings& findings, const std::string& name);

class Children {
 public:
  // Kills those that still run.
  ~Children();

  // Starts /proc/self/exe with `options`. They end with their parent.
  void Start(const std::vector<std::string>& options);
  // Waits for all. How many ended with another status than 0.
  int Wait();

 private:
  std::vector<pid_t> pids_;
};

}  // namespace kvtier::load
