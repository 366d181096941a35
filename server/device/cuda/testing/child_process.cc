#include "server/device/cuda/testing/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace kvtier::testing {

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, int descriptor) {
  signal(SIGPIPE, SIG_IGN);  // a child may end before it is spoken to
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (descriptor >= 0) posix_spawn_file_actions_adddup2(&actions, descriptor, kDescriptor);
  std::vector<char*> words = {const_cast<char*>("child")};
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, words.data(), environ) != 0) abort();
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_child_ = in[1];
  from_child_ = out[0];
}

ChildProcess::~ChildProcess() {
  Kill();
  close(to_child_);
  close(from_child_);
}

void ChildProcess::Send(const std::string& line) const {
  const std::string text = line + "\n";
  if (write(to_child_, text.data(), text.size()) < 0) perror("writing to a child process");
}

bool ChildProcess::ReceiveSome() {
  pollfd waiting = {.fd = from_child_, .events = POLLIN};
  if (poll(&waiting, 1, kSecondsMax * 1000) <= 0) return false;
  char buffer[4096];
  const ssize_t bytes = read(from_child_, buffer, sizeof(buffer));
  if (bytes <= 0) return false;
  received_.append(buffer, static_cast<size_t>(bytes));
  return true;
}

std::optional<std::string> ChildProcess::Receive() {
  while (received_.find('\n') == std::string::npos) {
    if (!ReceiveSome()) return std::nullopt;
  }
  const size_t end = received_.find('\n');
  const std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

std::string ChildProcess::ReceiveAll() {
  while (ReceiveSome()) {
  }
  return received_;
}

void ChildProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Wait();
}

int ChildProcess::Wait() {
  if (pid_ <= 0) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string Hex(const void* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<const uint8_t*>(data)[i]);
    text += digits;
  }
  return text;
}

bool FromHex(const std::string& text, void* data, size_t bytes) {
  if (text.size() != 2 * bytes) return false;
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<uint8_t*>(data)[i] =
        static_cast<uint8_t>(strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return true;
}

}  // namespace kvtier::testing
