#include "tests/load/children.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvtier::load {

void WriteFindings(const std::string& path, const Findings& findings) {
  std::ofstream file(path);
  for (const auto& [name, value] : findings) {
    std::string line = value;
    for (char& c : line) c = c == '\n' ? ' ' : c;
    file << name << ' ' << line << '\n';
  }
}

Findings ReadFindings(const std::string& path) {
  Findings findings;
  std::ifstream file(path);
  for (std::string name, value; file >> name && file.get() && std::getline(file, value);) {
    findings[name] = value;
  }
  return findings;
}

double NumberOf(const Findings& findings, const std::string& name) {
  const auto found = findings.find(name);
  return found == findings.end() ? 0 : std::atof(found->second.c_str());
}

Children::~Children() {
  for (const pid_t pid : pids_) kill(pid, SIGKILL);
  Wait();
}

void Children::Start(const std::vector<std::string>& options) {
  std::vector<std::string> words = {"load"};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv("/proc/self/exe", arguments.data());
    _exit(127);
  }
  if (pid < 0) {
    std::perror("fork");
    std::exit(1);
  }
  pids_.push_back(pid);
}

int Children::Wait() {
  int failed = 0;
  for (const pid_t pid : pids_) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  pids_.clear();
  return failed;
}

}  // namespace kvtier::load
